"""Clients' ledgers, the SQLite connections that the code under test opens, and a disk that is full."""

import resource
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from pausefl_client.privacy.ledger import Ledger
from pausefl_proto.budget import Budget

open_ledgers = ExitStack()
"""Closes the ledgers of a test when it is over."""


def open_ledger(folder: Path, client_id: str, budget: Budget) -> Ledger:
    """The client's ledger in `folder`; who wants to open it again must close it before."""
    ledger = Ledger(folder / f"{client_id}.db", budget, unit="coordinate", client_id=client_id, data="test")
    open_ledgers.callback(ledger.close)
    return ledger


def opened_connections(monkeypatch: pytest.MonkeyPatch) -> list[sqlite3.Connection]:
    """Every connection opened from now on: only a connection itself knows how it syncs and locks."""
    opened: list[sqlite3.Connection] = []
    connect: Callable[..., sqlite3.Connection] = sqlite3.connect

    def noted(*arguments: Any, **options: Any) -> sqlite3.Connection:
        opened.append(connect(*arguments, **options))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", noted)
    return opened


@contextmanager
def full_disk(most_bytes: int = 1000) -> Iterator[None]:
    """Stands for a disk that takes no more: files cannot grow beyond a few bytes."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, limit[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
