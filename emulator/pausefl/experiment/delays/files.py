"""Delay laws from files of measured delays: one law for all clients, or one for each client."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from pausefl.experiment.delay_laws.laws import Recorded, Values
from pausefl.experiment.measured.censoring import equal_values
from pausefl.experiment.measured.reading import Probe, Reading, in_order


@dataclass(frozen=True)
class ClientPlace:
    """A client, and its position among all clients of the experiment."""

    client_id: str
    place: int
    """Its position among the experiment's clients, from 0."""
    client_ids: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class MeasuredDelays(Reading):
    """Measured delays from a file: one law for all clients, or one for each."""

    file: str
    """The file, relative to the experiment's file. It may be compressed, and in UTF-16."""
    order: Literal["drawn", "recorded"] = "drawn"
    """ "drawn": values are drawn with replacement. "recorded": round t has the t-th value, and after the last comes
    the first."""

    def law(self, client: ClientPlace) -> Values | Recorded:
        """The law of one client. Raises ValueError that names the key, or the file and the line.

        If the file names any of the experiment's clients, clients are looked up by id. If it only has other names, the
        experiment's k-th client has the delays of the k-th name in the file.
        """
        by_client = _by_client(self, _state(self.file))
        values, is_lost = in_order(by_client[self._name(client, list(by_client))])
        if self.order == "recorded" or not is_lost.any():
            return (Recorded if self.order == "recorded" else Values)(tuple(values.tolist()))
        return Values(tuple(equal_values(values[~is_lost], values[is_lost]).tolist()))

    def _name(self, client: ClientPlace, names: Sequence[str]) -> str:
        if not self.is_by_client:
            return ""
        if not client.client_ids.isdisjoint(names):
            if client.client_id not in names:
                raise ValueError(f'file = "{self.file}": has no {client.client_id}')
            return client.client_id
        if client.place >= len(names):
            counts = f"delays of {len(names)}, the experiment has {len(client.client_ids)} clients"
            raise ValueError(f'file = "{self.file}": has {counts}')
        return names[client.place]

    @property
    def is_by_client(self) -> bool:
        """Whether each client has its own law: `client_column` is set, or the format has a column of clients."""
        return self.client_column is not None or self.format != "csv"


def _state(file: str) -> tuple[int, int]:
    """A value that changes with the file, which may be corrected while a notebook or a service keeps running."""
    with suppress(OSError):
        found = Path(file).stat()
        return found.st_mtime_ns, found.st_size
    return 0, 0


@lru_cache(maxsize=64)  # read once for all clients
def _by_client(delays: MeasuredDelays, _: tuple[int, int]) -> Mapping[str, list[Probe]]:
    """The delays of each client in seconds, by its name. Without a column of clients, all are under ""."""

    def spelt(key: str, value: str) -> str:
        text = value if key == "timeout_s" else f'"{value}"'
        return f"{key} = [{text}]" if key in ("lost", "filter") else f"{key} = {text}"

    try:
        found = delays.measured(Path(delays.file), spelt, by_client=delays.is_by_client, above_zero=False)
    except ValueError as error:
        raise ValueError(f'file = "{delays.file}": {error}') from error
    if not found:
        raise ValueError(f'file = "{delays.file}": holds no values')
    return found
