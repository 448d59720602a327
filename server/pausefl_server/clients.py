"""The table of who is known: one row per client, a fold over the observation log.

Rows are sorted by client id at the start; newcomers are appended by (round joined, id) and a row never moves.
Three counts are kept apart: `chosen` (for g), `measured` (for ucb and μ̄) and `released` (for p).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pausefl_proto.draws import stable_hash
from pausefl_server.records import LogEvent, RoundRecord

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_COLUMNS: dict[str, tuple[type, Any]] = {
    "n_examples": (np.int64, 0),
    "joined_round": (np.int64, 1),
    "chosen": (np.int64, 0),
    "measured": (np.int64, 0),
    "released": (np.int64, 0),
    "used": (np.int64, 0),
    "inverse_latency_sum": (np.float64, 0.0),
    "epsilon_spent": (np.float64, 0.0),
    "last_loss": (np.float64, np.nan),
    "connected": (np.bool_, False),
    "retired": (np.bool_, False),
    "tie_key": (np.int64, 0),
}


@dataclass
class ClientTable:
    """Columns of length K, dense rows; `ids[row]` is the client's name and `row_of[id]` its row.

    inverse_latency_sum is Σ 1/τ over the client's measured rounds, so μ̄_k = τ_min · sum / measured stays right when
    an automatic τ_min falls (PAUSE v2, eq. (11)). tie_key is a seeded hash of the id that breaks ties.
    """

    seed: int = 0
    ids: list[str] = field(default_factory=list)
    row_of: dict[str, int] = field(default_factory=dict)
    min_latency_s: float = np.inf
    """The least latency seen so far, for τ_min = "auto"."""
    n_examples: IntArray = field(default_factory=lambda: np.empty(0, np.int64))
    joined_round: IntArray = field(default_factory=lambda: np.empty(0, np.int64))
    chosen: IntArray = field(default_factory=lambda: np.empty(0, np.int64))
    measured: IntArray = field(default_factory=lambda: np.empty(0, np.int64))
    released: IntArray = field(default_factory=lambda: np.empty(0, np.int64))
    used: IntArray = field(default_factory=lambda: np.empty(0, np.int64))
    """i of the last release whose update was used."""
    inverse_latency_sum: FloatArray = field(default_factory=lambda: np.empty(0, np.float64))
    epsilon_spent: FloatArray = field(default_factory=lambda: np.empty(0, np.float64))
    last_loss: FloatArray = field(default_factory=lambda: np.empty(0, np.float64))
    connected: BoolArray = field(default_factory=lambda: np.empty(0, np.bool_))
    retired: BoolArray = field(default_factory=lambda: np.empty(0, np.bool_))
    tie_key: IntArray = field(default_factory=lambda: np.empty(0, np.int64))
    label_counts: dict[int, FloatArray] = field(default_factory=dict)
    """Examples per label by row, only of clients that disclose them (statistics "label_0", "label_1", ...)."""

    def __post_init__(self) -> None:
        """A table made of some columns has the others at their defaults."""
        for name, (dtype, default) in _COLUMNS.items():
            if len(getattr(self, name)) != len(self.ids):
                setattr(self, name, np.full(len(self.ids), default, dtype))

    def __len__(self) -> int:
        return len(self.ids)

    def eligible(self) -> IntArray:
        """Rows that may be chosen now, ascending: connected and not retired."""
        return np.flatnonzero(self.connected & ~self.retired)

    def rows(self, ids: Iterable[str]) -> IntArray:
        """The rows of these clients, in the order given."""
        return np.fromiter((self.row_of[i] for i in ids), np.int64)

    def apply_events(self, events: Iterable[LogEvent], round: int) -> None:
        """Fold what happened before `round` was selected: joins and leaves, corrections, retirements."""
        events = tuple(events)
        known = self.row_of
        newcomers = {e.client_id for e in events if e.kind == "joined" and e.client_id not in known}
        self._append(sorted(newcomers), round)
        for event in events:
            row = self.row_of.get(event.client_id)
            if row is not None:
                self._apply_event(event, row)

    def apply_round(self, record: RoundRecord) -> None:
        """Fold one committed round's choices and observations (O(m), in place)."""
        np.add.at(self.chosen, self.rows(record.chosen), 1)
        if not record.observations:
            return
        rows = self.rows(o.client_id for o in record.observations)
        latency_s = np.array([o.latency_s for o in record.observations])
        self.measured[rows] += 1
        self.inverse_latency_sum[rows] += 1.0 / latency_s
        self.min_latency_s = min(self.min_latency_s, float(latency_s.min()))
        for row, o in zip(rows, record.observations, strict=True):
            self._raise_spent(row, o.participation, o.epsilon_spent)
            self.used[row] = o.participation
            if o.loss is not None:
                self.last_loss[row] = o.loss
            if "label_0" in o.statistics:
                labels = sum(name.startswith("label_") for name in o.statistics)
                # A client may leave some out: it is not believed to have said all.
                self.label_counts[int(row)] = np.array([o.statistics.get(f"label_{c}", 0.0) for c in range(labels)])

    def _apply_event(self, event: LogEvent, row: int) -> None:
        if event.kind == "joined":
            self.connected[row] = True
            self.n_examples[row] = event.n_examples
            self._raise_spent(row, event.released, event.epsilon_spent)
        elif event.kind == "left":
            self.connected[row] = False
        elif event.kind == "reconciled":
            self._raise_spent(row, event.released, event.epsilon_spent)
        elif event.kind == "retired":
            self.retired[row] = True

    def _raise_spent(self, row: int, released: int, epsilon_spent: float) -> None:
        """A ledger is only ever corrected upwards."""
        self.released[row] = max(int(self.released[row]), released)
        self.epsilon_spent[row] = max(float(self.epsilon_spent[row]), epsilon_spent)

    def _append(self, ids: list[str], round: int) -> None:
        if not ids:
            return
        start = len(self.ids)
        self.ids.extend(ids)
        self.row_of.update((client_id, start + i) for i, client_id in enumerate(ids))
        for name, (dtype, default) in _COLUMNS.items():
            setattr(self, name, np.concatenate([getattr(self, name), np.full(len(ids), default, dtype)]))
        self.joined_round[start:] = round
        self.tie_key[start:] = [stable_hash(self.seed, "tie", client_id) for client_id in ids]
