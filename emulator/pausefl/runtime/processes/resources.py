"""A process's resources on its host: open files, memory that it has freed, time for collecting garbage, GPUs."""

import ctypes
import gc
import os
import resource
from functools import cache

from pausefl_proto.errors import ConfigError

# Of glibc's <malloc.h>.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
# The greatest value glibc takes for M_MMAP_THRESHOLD on 64-bit machines.
_BUFFER_BYTES = 32 << 20
# What a process has open without clients, and what each ledger takes.
_FILES = 40
_FILES_OF_A_LEDGER = 3
# Before the youngest generation is looked through; Python's own value is 700.
_NEW_OBJECTS = 10_000


def allow_many_files() -> None:
    """Lift the soft limit on open files to the hard one: a stream and a ledger for each of a thousand clients."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def refuse_few_files(*, clients: int = 0, ledgers: int = 0) -> None:
    """ConfigError where a process of so many streams to clients, or of so many ledgers, may not open enough files."""
    needed = max(_FILES + clients, _FILES + ledgers * _FILES_OF_A_LEDGER)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < needed:
        raise ConfigError(f"at most {most} files may be open (RLIMIT_NOFILE, ulimit -Hn): about {needed} are needed")


def keep_freed_memory(most_bytes: int = _BUFFER_BYTES) -> None:
    """Tell glibc to keep freed buffers of up to 32 MiB each, `most_bytes` in all, for the next ones.

    Otherwise they go back to the kernel, and every round pages them in again: that costs more than all else a client
    does with a model of 1 MB. Elsewhere than on glibc this does nothing. `most_bytes` is below 2 GiB.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _BUFFER_BYTES)
        mallopt(_M_TRIM_THRESHOLD, most_bytes)


def collect_seldom() -> None:
    """Let Python look for cyclic garbage only after many more objects were made than freed.

    A round makes some thousands, nearly all of which are freed with their last reference. Looking through them more
    often costs a server a tenth of its processor time and finds nothing.
    """
    gc.set_threshold(_NEW_OBJECTS)


@cache  # what is hidden cannot be counted again
def own_device(name: str, process: int) -> str:
    """What `workload.device` is called in this process, from which all other CUDA devices are hidden from now on.

    It must not have asked for them yet. It so has one context: a step of torch's Adam on a processor already begins to
    use a device that it sees. `process` is the number of this process on its machine, as in `dealt_device`.
    """
    if name == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        return name
    import torch  # which processes that train nothing do without

    from pausefl_client.training.torch_trainer import dealt_device

    if count := torch.cuda.device_count():
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(count)))
        os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[dealt_device(name, process, count)]
        return name.partition(":")[0]
    return name
