"""Clients' ledgers, a record of opened SQLite connections, a simulated full disk, and the layout of a database."""

import hashlib
import resource
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from pausefl_client.privacy.ledger import Ledger
from pausefl_proto.budget import Budget

open_ledgers = ExitStack()
"""Closes the ledgers that a test has opened when the test is over."""


def open_ledger(folder: Path, client_id: str, budget: Budget) -> Ledger:
    """Open the client's ledger in `folder`. To open it again, close it first."""
    ledger = Ledger(folder / f"{client_id}.db", budget, unit="coordinate", client_id=client_id, data="test")
    open_ledgers.callback(ledger.close)
    return ledger


def opened_connections(monkeypatch: pytest.MonkeyPatch) -> list[sqlite3.Connection]:
    """A growing list of connections opened from now on. Only a connection can tell how it syncs and locks."""
    opened: list[sqlite3.Connection] = []
    connect: Callable[..., sqlite3.Connection] = sqlite3.connect

    def noted(*arguments: Any, **options: Any) -> sqlite3.Connection:
        opened.append(connect(*arguments, **options))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", noted)
    return opened


@contextmanager
def full_disk(most_bytes: int = 1000) -> Iterator[None]:
    """Simulate a full disk: files cannot grow beyond `most_bytes`."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, limit[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)


def layout(path: Path) -> str:
    """A digest of a database's tables and their columns."""
    query = (
        "SELECT of.name, own.* FROM sqlite_schema AS of, pragma_table_info(of.name) AS own WHERE of.type = 'table'"
        " ORDER BY of.name, own.cid"
    )
    with closing(sqlite3.connect(path)) as database:
        return hashlib.sha256(repr(database.execute(query).fetchall()).encode()).hexdigest()[:16]
