"""The SQLite connections that the code under test opens: only a connection itself knows how it syncs and locks."""

import sqlite3
from collections.abc import Callable
from typing import Any

import pytest


def opened_connections(monkeypatch: pytest.MonkeyPatch) -> list[sqlite3.Connection]:
    """A list that every connection opened from now on is added to."""
    opened: list[sqlite3.Connection] = []
    connect: Callable[..., sqlite3.Connection] = sqlite3.connect

    def noted(*arguments: Any, **options: Any) -> sqlite3.Connection:
        opened.append(connect(*arguments, **options))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", noted)
    return opened
