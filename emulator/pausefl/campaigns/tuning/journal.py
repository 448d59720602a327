"""The journal of a search: Optuna's log on the disk, which one process at a time writes."""

import os
from pathlib import Path

from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock


class _Held(JournalFileOpenLock):
    """Stands for the lock of the search's folder, which its process holds.

    Optuna's own is a file that a process which is killed leaves behind. Beside a journal with a relative path, it is
    waited for for ever.
    """

    def acquire(self) -> bool:
        """Return at once."""
        return True

    def release(self) -> None:
        """Return: the folder stays locked."""


def open_journal(path: Path) -> JournalStorage:
    """The journal at `path`, begun if there is none; the caller holds the lock of its folder."""
    _drop_unfinished_line(path)
    return JournalStorage(JournalFileBackend(str(path), lock_obj=_Held(str(path))))


def _drop_unfinished_line(path: Path) -> None:
    """Cut what a process that was killed had begun to write; Optuna reads whole lines alone."""
    if path.exists():
        data = path.read_bytes()
        os.truncate(path, data.rfind(b"\n") + 1)
