"""Sets a process's use of its host's resources: open files, freed memory, garbage collection, GPUs."""

import ctypes
import gc
import os
import resource
from functools import cache

from pausefl_proto.errors import ConfigError

# From glibc's <malloc.h>.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
# The greatest value that glibc accepts for M_MMAP_THRESHOLD on 64-bit machines.
_BUFFER_BYTES = 32 << 20
# How many files a process has open without clients, and how many each ledger needs.
_FILES = 40
_FILES_OF_A_LEDGER = 3
# How many new objects trigger a collection of the youngest generation. Python's own value is 700.
_NEW_OBJECTS = 10_000


def allow_many_files() -> None:
    """Raise the soft limit on open files to the hard limit: a thousand clients need a stream and a ledger each."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def refuse_few_files(*, clients: int = 0, ledgers: int = 0) -> None:
    """ConfigError if this process may not open enough files for this many streams to clients, or this many ledgers."""
    needed = max(_FILES + clients, _FILES + ledgers * _FILES_OF_A_LEDGER)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < needed:
        raise ConfigError(f"at most {most} files may be open (RLIMIT_NOFILE, ulimit -Hn): about {needed} are needed")


def keep_freed_memory(most_bytes: int = _BUFFER_BYTES) -> None:
    """Tell glibc to keep freed buffers of up to 32 MiB each, `most_bytes` in all, for the next ones.

    Otherwise they go back to the kernel, and every round pages them in again. With a model of 1 MB, that costs more
    than all other work of a client. Without glibc, this does nothing. `most_bytes` must be below 2 GiB.
    """
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        mallopt(_M_MMAP_THRESHOLD, _BUFFER_BYTES)
        mallopt(_M_TRIM_THRESHOLD, most_bytes)


def collect_seldom() -> None:
    """Make Python look for cyclic garbage only after many more objects were made than freed.

    A round makes some thousands, nearly all of which are freed with their last reference. Looking through them more
    often costs a server a tenth of its processor time and finds nothing.
    """
    gc.set_threshold(_NEW_OBJECTS)


@cache  # hidden devices cannot be counted again
def own_device(name: str, process: int) -> str:
    """The name of `workload.device` (`name`) in this process. All other CUDA devices are hidden from it from now on.

    Called before the process uses CUDA. It then has one CUDA context at most: even a step of torch's Adam on a CPU
    begins to use a visible device. `process` is this process's number on its machine, as in `dealt_device`.
    """
    if name == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        return name
    import torch  # here, as processes that train nothing need no torch

    from pausefl_client.training.torch_trainer import dealt_device

    if count := torch.cuda.device_count():
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(count)))
        os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[dealt_device(name, process, count)]
        return name.partition(":")[0]
    return name
