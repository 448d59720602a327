"""Assigns clients to a container that is not told its clients: it holds a slot, a number that no other container has.

A slot is a lock file in the folder of the ledgers. The kernel releases the lock when its process ends in any way
(kill -9 included). The next process then goes on with the ledgers of that slot's clients.
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
    """Hold a slot for the block, and yield the ids of its `count` clients. The last slot may have fewer.

    If `slot` is None, take the first free one. ConfigError if there is no such slot, if another process holds it, or if
    the folder cannot be written.
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
