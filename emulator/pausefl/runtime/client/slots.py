"""The clients of a container that is not told them: each holds a slot, a number that no other container has.

A slot is a lock file in the folder where the ledgers lie. The kernel lets go of it with the process that holds it,
however that ends (kill -9 included), and the next process goes on with the ledgers of that slot's clients.
"""

import fcntl
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pausefl_process.files import prepare_folder
from pausefl_proto.errors import ConfigError

log = logging.getLogger("pausefl.client")


@contextmanager
def claimed_clients(client_ids: Sequence[str], slot: int | None, count: int, folder: Path) -> Iterator[list[str]]:
    """The clients of a slot, `count` of them (fewer in the last), held for the time of the block.

    Without a slot, the first free one. ConfigError when there is no such slot, when it is held by another process, or
    when the folder cannot be written.
    """
    slots = range(-(-len(client_ids) // count))
    if slot is not None and slot not in slots:
        last = f"{slots[-1]}: there are {len(client_ids)} clients (clients.count), {count} a slot"
        raise ConfigError(f"--slot {slot}: must be at most {last}")
    prepare_folder(folder, f"--ledger-dir {folder}")
    for held in slots if slot is None else (slot,):
        with (folder / f"slot-{held:05}.lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            held_ids = list(client_ids[held * count : (held + 1) * count])
            log.info("slot %d: %s", held, " to ".join(dict.fromkeys((held_ids[0], held_ids[-1]))))
            yield held_ids
            return
    taken = f"{slot}: is" if slot is not None else f"auto: all {len(slots)} slots are"
    raise ConfigError(f"--slot {taken} held by other processes in {folder}; see clients.count")
