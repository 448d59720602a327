"""The table of all known clients: one row per client, computed as a fold over the observation log.

Rows are sorted by client id at the start. Newcomers are appended by (round joined, id), and a row never moves.
Three counts are kept apart: `chosen` (for g), `measured` (for ucb and μ̄) and `released` (for p). A miss is a censored
measurement: it counts in `measured`, and in `missed` as well.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pausefl_proto.arrays import BoolArray, FloatArray, IntArray
from pausefl_proto.draws import stable_hash
from pausefl_server.records import LogEvent, Observation, RoundRecord

_Scalar = TypeVar("_Scalar", bound=np.generic)

# How many round trips of each client are kept.
_RECENT = 16

GREATEST_STATED = 1e9
"""Greater losses and label counts count as this: sums and products of greater values might overflow."""
# A latency is the difference of two times, so a latency of exactly τ_min may come out smaller by this share of it.
_ROUNDING = 1e-9
# |D_k| counts up to this many times the median that clients state.
_EXAMPLES_TIMES_MEDIAN = 5


def column(dtype: type[Any], first: Any) -> Any:
    """A field that holds a column, one row per client; `first` is a new client's value."""
    row = np.array(first, dtype)
    return field(default_factory=lambda: np.empty((0, *row.shape), dtype), metadata={"row": row})


def first_values(table: type[Any]) -> dict[str, NDArray[Any]]:
    """Name of a column of a dataclass -> a new client's value."""
    return {each.name: each.metadata["row"] for each in fields(table) if each.metadata}


def grown(column: NDArray[_Scalar], length: int, first: Any = 0) -> NDArray[_Scalar]:
    """A copy of a column, with `first` for each row up to `length` that has no entry yet."""
    new = np.full((length - len(column), *column.shape[1:]), first, column.dtype)
    return np.concatenate((column, new))


@dataclass
class ClientTable:
    """Columns of length K with dense rows; `ids[row]` is a client's id and `row_of[id]` its row.

    The sums for μ_k = E[τ_min/τ_k] (PAUSE v2, eq. (11)) are kept as inverses, so that an estimated τ_min may change.
    The mean of the uncensored rewards lies between τ_min · inverse_latency_sum / measured and τ_min ·
    (inverse_latency_sum + censored_inverse_sum) / measured.
    """

    seed: int = 0
    """The seed of `tie_key`."""
    tau_min_s: float | None = None
    """The configured τ_min; None: it is estimated, see `effective_tau_min_s`."""
    examples_max: int | None = None
    """The greatest |D_k| that counts; None: 5 times the median of the numbers that connected clients state."""
    ids: list[str] = field(default_factory=list)
    """The client id of each row."""
    row_of: dict[str, int] = field(default_factory=dict)
    """The row of each client id."""
    estimated_tau_min_s: float = np.inf
    """τ_min estimated from the latencies seen, for τ_min = "auto"."""
    n_examples: IntArray = column(np.int64, 0)
    """|D_k| as the run counts it: the number that the client states, up to the cap."""
    stated_examples: IntArray = column(np.int64, 0)
    """|D_k| as the client states it."""
    joined_round: IntArray = column(np.int64, 1)
    """The first round whose selection knew the client: 1 for clients that joined at the start."""
    jobs_before: IntArray = column(np.int64, 0)
    """How many jobs had been given to all clients together when this client joined."""
    chosen: IntArray = column(np.int64, 0)
    """How often the client was chosen, also in failed attempts at rounds. A client drawn twice counts twice."""
    measured: IntArray = column(np.int64, 0)
    """How many rounds measured the client's latency: those it answered and those it missed. Rounds that a stop or a
    sleep touched (`teaches` is False) count neither here nor in the columns about misses and latencies."""
    untaught: IntArray = column(np.int64, 0)
    """How many of the client's answers are not measured, because a stop or a sleep touched them."""
    missed: IntArray = column(np.int64, 0)
    """How many of the measured rounds were misses."""
    misses_in_a_row: IntArray = column(np.int64, 0)
    """Misses since the client's last answer. Misses of kind "unneeded" do not count."""
    last_missed_round: IntArray = column(np.int64, 0)
    """The round of the last of these misses; 0 before the first."""
    clamped: IntArray = column(np.int64, 0)
    """How many latencies were below τ_min by more than rounding, so that their reward τ_min/τ was clamped at 1."""
    released: IntArray = column(np.int64, 0)
    """How many private releases the client has made: as it said last, or as is proven."""
    proven: IntArray = column(np.int64, 0)
    """i of the last release that is proven: the hello of a client that did not prove its identity is no proof."""
    used: IntArray = column(np.int64, 0)
    """i of the last release whose update was used."""
    inverse_latency_sum: FloatArray = column(np.float64, 0.0)
    """Σ min(1/τ, 1/τ_min) over the client's answers; a miss adds 0. The table keeps no mean latency."""
    censored_inverse_sum: FloatArray = column(np.float64, 0.0)
    """Σ min(1/d, 1/τ_min) over the client's misses, where d is the censored latency."""
    least_latency_s: FloatArray = column(np.float64, np.inf)
    """The client's own least latency."""
    recent_round_trips_s: FloatArray = column(np.float64, np.full(_RECENT, np.nan))
    """(K, 16) each client's last round trips in no particular order, NaN if there were fewer; policies never see it."""
    epsilon_spent: FloatArray = column(np.float64, 0.0)
    """The ε that the client has spent."""
    last_loss: FloatArray = column(np.float64, np.nan)
    """The training loss that the client disclosed last; NaN if it disclosed none."""
    connected: BoolArray = column(np.bool_, False)
    """Whether the client is connected."""
    retired: BoolArray = column(np.bool_, False)
    """Whether the client is never asked again: its budget is used up, or its next ε lies below the floor."""
    tie_key: IntArray = column(np.int64, 0)
    """A seeded hash of the id, which breaks ties."""
    label_counts: dict[int, FloatArray] = field(default_factory=dict)
    """Examples per label, by row, of the clients that disclose them (statistics "label_0", "label_1", ...)."""

    def __post_init__(self) -> None:
        """Fill the columns that were not given with their defaults."""
        if len(self.stated_examples) != len(self.n_examples):
            self.stated_examples = self.n_examples.copy()
        for name, row in _COLUMNS.items():
            if len(getattr(self, name)) != len(self.ids):
                setattr(self, name, np.full((len(self.ids), *row.shape), row))

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def effective_tau_min_s(self) -> float:
        """The configured τ_min; without one, its estimate (docs/selection.md, "τ_min"), infinite before any answer."""
        return self.estimated_tau_min_s if self.tau_min_s is None else self.tau_min_s

    def eligible(self) -> IntArray:
        """Rows that can be asked now, ascending: connected and not retired. See `choosing.selectable_rows`."""
        return (self.connected & ~self.retired).nonzero()[0]

    def rows(self, ids: Iterable[str]) -> IntArray:
        """The rows of these clients, in the order given."""
        return np.fromiter((self.row_of[i] for i in ids), np.int64)

    def apply_events(self, events: Iterable[LogEvent], round: int) -> None:
        """Fold the events before the selection of `round`: joins and leaves, corrections, retirements."""
        events = tuple(events)
        if not events:
            return
        known = self.row_of
        newcomers = {e.client_id for e in events if e.kind == "joined" and e.client_id not in known}
        self._append(sorted(newcomers), round)
        for event in events:
            row = self.row_of.get(event.client_id)
            if row is not None:
                self._apply_event(event, row)
        self._cap_examples()

    def forget_rows_from(self, row: int) -> None:
        """Forget the clients of this and later rows, which no round has seen. Their events will be folded again."""
        for client_id in self.ids[row:]:
            del self.row_of[client_id]
        del self.ids[row:]
        for name in _COLUMNS:
            setattr(self, name, getattr(self, name)[:row])

    def apply_round(self, record: RoundRecord) -> None:
        """Fold the choices and observations of a round, or of a failed attempt at one (O(m), in place)."""
        np.add.at(self.chosen, self.rows(record.chosen), 1)
        self._fold_misses(record)
        if not record.observations:
            return
        rows = self.rows(o.client_id for o in record.observations)
        self.misses_in_a_row[rows] = 0
        teaches = np.array([o.teaches for o in record.observations])
        if taught := [o for o in record.observations if o.teaches]:
            self._fold_latencies(rows[teaches], taught)
        self.untaught[rows[~teaches]] += 1
        participation = np.array([o.participation for o in record.observations])
        self._raise_spent(rows, participation, np.array([o.epsilon_spent for o in record.observations]))
        self.used[rows] = participation
        of_client = list(zip(rows.tolist(), record.observations, strict=True))
        if losses := {row: o.loss for row, o in of_client if o.loss is not None}:
            self.last_loss[[*losses]] = np.clip([*losses.values()], -GREATEST_STATED, GREATEST_STATED)
        for row, o in of_client:
            if "label_0" in o.statistics:
                labels = len(only_labels(o.statistics))
                # A client may leave labels out: these count 0.
                counts = np.array([o.statistics.get(f"label_{c}", 0.0) for c in range(labels)])
                self.label_counts[row] = np.clip(counts, 0.0, GREATEST_STATED)

    def _fold_latencies(self, rows: IntArray, observations: Sequence[Observation]) -> None:
        """Count answers and their latencies. Rewards are clamped by the τ_min estimated with these included."""
        answers = self.measured[rows] - self.missed[rows]
        self.recent_round_trips_s[rows, answers % _RECENT] = [o.timing.round_trip_s for o in observations]
        latency_s = np.array([o.latency_s for o in observations])
        self.measured[rows] += 1
        self.least_latency_s[rows] = np.minimum(self.least_latency_s[rows], latency_s)
        if self.tau_min_s is None:
            least_s = np.sort(self.least_latency_s[np.isfinite(self.least_latency_s)])
            last = len(least_s) - 1
            self.estimated_tau_min_s = float(max(least_s[int(0.05 * last)], 0.1 * least_s[last // 2]))
        tau_min_s = self.effective_tau_min_s
        self.clamped[rows] += latency_s < tau_min_s * (1 - _ROUNDING)
        self.inverse_latency_sum[rows] += 1.0 / np.maximum(latency_s, tau_min_s)

    def _fold_misses(self, record: RoundRecord) -> None:
        """Count misses as censored latencies, of which a lower bound is known."""
        misses = [miss for miss in record.misses if miss.teaches]
        if not misses:
            return
        rows = self.rows(miss.client_id for miss in misses)
        self.measured[rows] += 1
        self.missed[rows] += 1
        at_fault = self.rows(miss.client_id for miss in misses if miss.kind != "unneeded")
        self.misses_in_a_row[at_fault] += 1
        self.last_missed_round[at_fault] = record.round
        tau_min_s = self.effective_tau_min_s
        bound_s = np.array([miss.latency_s for miss in misses])
        self.censored_inverse_sum[rows] += 1.0 / np.maximum(bound_s, tau_min_s if np.isfinite(tau_min_s) else 1e-6)

    def _cap_examples(self) -> None:
        """Cap every |D_k|. The default cap follows the median, which half of the clients cannot move at will."""
        stated, connected = self.stated_examples, np.flatnonzero(self.connected)
        cap = self.examples_max
        if cap is None and connected.size:
            middle = (connected.size - 1) // 2
            cap = _EXAMPLES_TIMES_MEDIAN * int(np.partition(stated[connected], middle)[middle])
        if cap is not None:
            self.n_examples = np.minimum(stated, cap)

    def _apply_event(self, event: LogEvent, row: int) -> None:
        if event.kind == "joined":
            self.connected[row] = True
            self.stated_examples[row] = event.n_examples
            if event.released >= self.proven[row]:  # an earlier claim may be an impostor's
                self.released[row], self.epsilon_spent[row] = event.released, event.epsilon_spent
        elif event.kind == "left":
            self.connected[row] = False
        elif event.kind == "reconciled":
            self._raise_spent(row, event.released, event.epsilon_spent)
        elif event.kind == "merged":
            self.used[row] = max(int(self.used[row]), event.released)
        elif event.kind == "retired":
            self.retired[row] = True

    def _raise_spent(self, rows: IntArray | int, released: IntArray | int, epsilon_spent: FloatArray | float) -> None:
        """Raise the proven releases and the ε spent. They never fall."""
        self.proven[rows] = np.maximum(self.proven[rows], released)
        self.released[rows] = np.maximum(self.released[rows], released)
        self.epsilon_spent[rows] = np.maximum(self.epsilon_spent[rows], epsilon_spent)

    def known_releases(self, client_id: str) -> tuple[int, int]:
        """How many of the client's releases are proven, and the last whose update was used; (0, 0) if it is unknown."""
        row = self.row_of.get(client_id)
        return (0, 0) if row is None else (int(self.proven[row]), int(self.used[row]))

    def _append(self, ids: list[str], round: int) -> None:
        if not ids:
            return
        start, jobs = len(self.ids), int(self.chosen.sum())
        self.ids.extend(ids)
        self.row_of.update((client_id, start + i) for i, client_id in enumerate(ids))
        for name, row in _COLUMNS.items():
            setattr(self, name, grown(getattr(self, name), len(self.ids), row))
        self.joined_round[start:] = round
        self.jobs_before[start:] = jobs
        self.tie_key[start:] = [stable_hash(self.seed, "tie", client_id) for client_id in ids]


def only_labels(statistics: Mapping[str, float]) -> dict[str, float]:
    """The label counts among an update's statistics: a client may state no others. The rest are the policy's own."""
    return {n: value for n, value in statistics.items() if n.startswith("label_") and n[len("label_") :].isdecimal()}


_COLUMNS = first_values(ClientTable)
