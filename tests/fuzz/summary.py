"""Both halves of the fuzz, their findings, and the bounds that these must keep."""

from pathlib import Path
from typing import Any

from fuzz.against_client import ClientFuzz
from fuzz.against_server import Plan, Say, ServerFuzz

MEMORY_TIMES_BASE = 1.5
GRPC_BYTES_PER_MESSAGE = 50
"""Memory that gRPC may keep: a bare server's grows without end, by 27 bytes per raw message and 105 per stream."""
LEAST_PACE = 0.8
DISK_BYTES, DISK_BYTES_PER_MESSAGE, DISK_BYTES_PER_ROUND = 4_000_000, 40, 20_000
"""Bounds on run.db and the server's output."""


class Fuzz:
    """A run of both halves; `summary` gives the findings so far."""

    def __init__(self, messages: int, client_messages: int, seed: int, say: Say) -> None:
        self._server = ServerFuzz(Plan(messages, seed), say)
        self._client = ClientFuzz(client_messages, seed, say)

    async def run(self, folder: Path) -> None:
        """Play both halves, each in its own folder."""
        for name, half in (("client", self._client), ("server", self._server)):
            (folder / name).mkdir()
            await half.run(folder / name)

    def summary(self) -> dict[str, Any]:
        """The findings so far."""
        return {"server": self._server.summary(), "client": self._client.summary()}

    def complaints(self) -> list[str]:
        """The first tracebacks of both ends, as printed."""
        return [text for half in self.summary().values() for text in half.get("complaints", ())]


def memory_bound_bytes(server: dict[str, Any]) -> int:
    """The bound on the server's memory after this number of messages."""
    return int(MEMORY_TIMES_BASE * server.get("base_rss_bytes", 0) + GRPC_BYTES_PER_MESSAGE * server["messages"])


def disk_bound_bytes(server: dict[str, Any]) -> int:
    """The bound on run.db and the server's output after these numbers of messages and rounds."""
    growth_bytes = DISK_BYTES_PER_MESSAGE * server["messages"] + DISK_BYTES_PER_ROUND * server.get("rounds", 0)
    return int(DISK_BYTES + growth_bytes)


def failures(summary: dict[str, Any]) -> list[str]:
    """The names of the bounds that a summary breaks."""
    server, client = summary["server"], summary["client"]
    bounds = {
        "tracebacks of the server": server.get("tracebacks") == 0,
        "the server ends in order": server.get("exit_status") == 130,
        "the server's memory": server.get("peak_rss_bytes", 0) <= memory_bound_bytes(server),
        "the server's disk": server.get("disk_bytes", 0) <= disk_bound_bytes(server),
        "the pace of honest rounds": (server["pace"] or 0) >= LEAST_PACE,
        "tracebacks of the clients": client.get("tracebacks") == 0,
        "the clients survive": bool(client.get("survives")),
        "the clients' memory": client.get("peak_rss_bytes", 0) <= MEMORY_TIMES_BASE * client.get("base_rss_bytes", 0),
        "the clients' ledgers": client["wrong_in_ledgers"] == 0,
        "sound jobs are answered": client["sound_jobs_answered"] >= 0.95 * client["sound_jobs"],
    }
    return [name for name, holds in bounds.items() if not holds]
