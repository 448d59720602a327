"""A snapshot of a run: an immutable summary of its log, which the metrics and the live page read.

The event loop makes a new snapshot for each change and never changes an old one, so other threads read it without a
lock. A round costs a few copies of small arrays. Readers do the expensive computations.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

import numpy as np

from pausefl_proto.arrays import BoolArray, FloatArray, IntArray, are_greatest
from pausefl_server.clients import ClientTable, column, first_values, grown
from pausefl_server.records import Evaluation, LogEvent, Miss, Observation, RoundRecord
from pausefl_server.settings import ServerSettings
from pausefl_server.state import RunState

PARTS = (
    "framing",
    "download",
    "injected_down",
    "queue",
    "train",
    "privatise",
    "injected_up",
    "upload",
    "server_wait",
    "propagation",
    "reconnect",
)
"""The parts of an exchange's time. Each is a property `<part>_s` of `Timing`; their sum is its `exchange_s`."""
EXCHANGE = ("round_trip", "timing_error", "down", "up", *PARTS)
"""The times of each exchange that histograms count. "down" and "up" are the drawn delays."""
_PER_DECADE = 25
SECONDS = np.array([float(f"{10 ** (k / _PER_DECADE):.4g}") for k in range(-59, 71)])
"""Upper bounds of the histograms' buckets, in seconds. From 5 ms to 10 minutes, the longest deadline that the server
sets by itself, a quantile read from a histogram is wrong by at most 10 %."""

# A curve is drawn a few hundred pixels wide. More points would be useless.
_POINTS_MAX = 512

parts_of = attrgetter(*(f"{part}_s" for part in PARTS))
"""Returns the parts of a `Timing`, in the order of PARTS."""


@dataclass(frozen=True, eq=False, slots=True)
class Histogram:
    """Times sorted into the buckets of SECONDS, in one or more series."""

    counts: IntArray
    """(series, buckets + 1): the number of times in each bucket. The last one is for times beyond all bounds."""
    sums_s: FloatArray
    """(series,): the sum of each series' times."""

    @staticmethod
    def empty(series: int) -> "Histogram":
        """A histogram without times."""
        return Histogram(np.zeros((series, SECONDS.size + 1), np.int64), np.zeros(series))

    def observe(self, times_s: FloatArray) -> "Histogram":
        """This histogram with more times, (series, n)."""
        buckets = np.searchsorted(SECONDS, times_s)
        series = np.arange(len(self.counts))[:, None] * self.counts.shape[1]
        fresh = np.bincount((series + buckets).ravel(), minlength=self.counts.size)
        return Histogram(self.counts + fresh.reshape(self.counts.shape), self.sums_s + times_s.sum(axis=1))

    def series(self) -> list[tuple[list[int], float]]:
        """For each series, the cumulative counts up to each bound and to infinity, and the sum in seconds."""
        return list(zip(self.counts.cumsum(axis=1).tolist(), self.sums_s.tolist(), strict=True))


@dataclass(frozen=True, eq=False, slots=True)
class Curve:
    """Points of a curve. If there are too many, only every `stride`-th added point is kept."""

    points: FloatArray
    """(n, columns), with n at most 512. The first column increases."""
    stride: int = 1
    added: int = 0

    def add(self, *point: float) -> "Curve":
        """The curve with one more point."""
        points, stride = self.points, self.stride
        if self.added % stride == 0:
            points = np.vstack((points, point))
        if len(points) > _POINTS_MAX:
            points, stride = points[::2], 2 * stride
        return Curve(points, stride, self.added + 1)


_OF_THE_TABLE = ("chosen", "released", "epsilon_spent", "connected", "retired")
_OF_THE_STATE = (
    "total_latency_s",
    "measured_latency_s",
    "elapsed_s",
    "censored_rounds",
    "suspect_rounds",
    "suspect_observations",
)


@dataclass(frozen=True, eq=False, slots=True)
class Clients:
    """Columns with one entry per client, in the order of the client table, after the last round or attempt at one."""

    ids: tuple[str, ...] = ()
    chosen: IntArray = column(np.int64, 0)
    released: IntArray = column(np.int64, 0)
    epsilon_spent: FloatArray = column(np.float64, 0.0)
    connected: BoolArray = column(np.bool_, False)
    retired: BoolArray = column(np.bool_, False)
    bytes_down: IntArray = column(np.int64, 0)
    bytes_up: IntArray = column(np.int64, 0)
    at_work_s: FloatArray = column(np.float64, 0.0)
    """Elapsed time that the client had jobs, for jobs that have ended."""
    round_trip_s: FloatArray = column(np.float64, np.nan)
    """The client's last measured round trip. As in the next two columns, NaN if nothing was measured."""
    latency_s: FloatArray = column(np.float64, np.nan)
    ping_s: FloatArray = column(np.float64, np.nan)

    def after_round(self, table: ClientTable, observations: Sequence[Observation], misses: Sequence[Miss]) -> "Clients":
        """The columns after a round, whose record `table` already includes. The table only appends rows."""
        ids = tuple(table.ids) if len(table) > len(self.ids) else self.ids
        of_table = {name: getattr(table, name).copy() for name in _OF_THE_TABLE}
        own = {name: grown(getattr(self, name), len(table), first) for name, first in _OWN.items()}
        after = replace(self, ids=ids, **of_table, **own)
        if observations:
            rows = table.rows(o.client_id for o in observations)
            np.add.at(after.bytes_down, rows, [o.bytes_down for o in observations])
            np.add.at(after.bytes_up, rows, [o.bytes_up for o in observations])
            after.round_trip_s[rows] = [o.timing.round_trip_s for o in observations]
            after.latency_s[rows] = [o.latency_s for o in observations]
        ended = table.rows([*(o.client_id for o in observations), *(m.client_id for m in misses)])
        times_s = [*(o.came_back_s - o.handed_out_s for o in observations), *(m.at_work_s for m in misses)]
        np.add.at(after.at_work_s, ended, times_s)
        return after

    def foremost(self, top: int) -> IntArray:
        """The rows of the `top` clients of greatest latency and of the `top` of greatest ε spent, ascending."""
        latency_s = np.where(np.isnan(self.latency_s), -np.inf, self.latency_s)
        return np.flatnonzero(are_greatest(latency_s, top) | are_greatest(self.epsilon_spent, top))

    def pinged(self, row: int, ping_s: float) -> "Clients":
        """The columns after a client's answer to a ping."""
        pings_s = self.ping_s.copy()
        pings_s[row] = ping_s
        return replace(self, ping_s=pings_s)


_OWN = {name: first for name, first in first_values(Clients).items() if name not in _OF_THE_TABLE}


@dataclass(frozen=True, eq=False, slots=True)
class RunSnapshot:
    """Everything shown about a run at one moment."""

    last_round_at_s: float
    """Unix time of the last commit, or of the server's start if that was later."""
    status: str = "waiting for clients"
    is_over: bool = False
    """Whether the run has ended in order, with its results written."""
    has_evaluator: bool | None = None
    """Whether the evaluator answered its last request; None in a run that evaluates nothing."""
    connected: int = 0
    arrivals: int = 0
    departures: int = 0
    rejected: int = 0
    round: int = 0
    total_latency_s: float = 0.0
    elapsed_s: float = 0.0
    committed: tuple[int, float, float] = (0, 0.0, 0.0)
    """The last committed round, and total latency and elapsed time then: without failed attempts since."""
    asked: int = 0
    """The greatest number of clients that a round asked."""
    staleness: int = 0
    """Σ of the updates' staleness, in steps."""
    record: RoundRecord | None = None
    """The last committed round."""
    budgets_end: int | None = None
    """The expected round after which fewer than m clients have budget left; None if budgets have no floor."""
    clients: Clients = Clients()
    missed: Counter[str] = field(default_factory=Counter)
    """Kind of miss -> number of chosen clients without an update."""
    measured_latency_s: float = 0.0
    """Σ over the rounds of the greatest measured latency, without the waits for misses."""
    censored_rounds: int = 0
    events: Counter[str] = field(default_factory=Counter)
    """Kind -> number of events."""
    ahead: Counter[str] = field(default_factory=Counter)
    """Kind -> how many of these events the next round of a resumed run will tell of."""
    failed_attempts: int = 0
    """Attempts at rounds in which no client gave an update."""
    clamped: int = 0
    """Latencies below τ_min."""
    suspect_rounds: int = 0
    suspect_observations: int = 0
    doubts: Counter[str] = field(default_factory=Counter)
    """Reason -> number of suspect rounds."""
    evaluations: Mapping[str, tuple[int, Evaluation]] = field(default_factory=dict)
    """Split -> the round of the last evaluated model, and its evaluation."""
    accuracy: Mapping[str, Curve] = field(default_factory=dict)
    """Split -> (round, total latency, elapsed time, accuracy), with accuracies on the split's fixed subset."""
    latency: Curve = Curve(np.empty((0, 6)))
    """(round, total latency, elapsed time, the round's latency, its slowest client's communication and device time)."""
    leakage: Curve = Curve(np.empty((0, 5)))
    """(round, total latency, elapsed time, greatest ε spent, median ε spent)."""
    rounds: Histogram = Histogram.empty(2)
    """Two series: the rounds' latencies, and the times that their selections took."""
    exchanges: Histogram = Histogram.empty(len(EXCHANGE))
    """A series for each time in EXCHANGE."""

    def after_round(self, record: RoundRecord, state: RunState, settings: ServerSettings) -> "RunSnapshot":
        """The snapshot after a committed round, which `state` already includes."""
        now, exchanges = self._after(state, record), self.exchanges
        at = record.round, now.total_latency_s, now.elapsed_s
        if record.observations:
            times_s = [_exchange(o, total_delays=settings.total_delays) for o in record.observations]
            exchanges = exchanges.observe(np.array(times_s).T)
        return replace(
            now,
            status="running",
            round=record.round,
            record=record,
            committed=at,
            asked=max(now.asked, len(set(record.chosen))),
            staleness=now.staleness + sum(o.staleness for o in record.observations),
            doubts=now.doubts + Counter(record.suspect),
            latency=now.latency.add(*at, record.round_latency_s, *_slowest(record.observations, settings.time_scale)),
            leakage=now.leakage.add(*at, *greatest_and_median(now.clients.epsilon_spent)),
            rounds=now.rounds.observe(np.array([[record.round_latency_s], [record.selection_s]])),
            exchanges=exchanges,
        )

    def after_failed_attempt(self, record: RoundRecord, state: RunState) -> "RunSnapshot":
        """The snapshot after an attempt that no client answered, which `state` already includes."""
        return replace(self._after(state, record), failed_attempts=self.failed_attempts + 1)

    def after_end(self, events: Iterable[LogEvent], state: RunState, reason: str) -> "RunSnapshot":
        """The snapshot with the events after the last round, which `state` already includes."""
        after = self._after(state, RoundRecord(state.round, 0, (), events=tuple(events)))
        return replace(after, status=f"finished: {reason}")

    def after_evaluation(self, round: int, evaluation: Evaluation) -> "RunSnapshot":
        """The snapshot with one more evaluation. The last may be of an older model: the best one is evaluated again."""
        split, accuracy, evaluations = evaluation.split, self.accuracy, self.evaluations
        if evaluation.subset:
            curve = accuracy.get(split, Curve(np.empty((0, 4))))
            # Total latency and elapsed time up to the round, interpolated from the thinned curve.
            rounds, *times_s = np.vstack((np.zeros(3), self.leakage.points[:, :3], self.committed)).T
            at = (float(np.interp(round, rounds, time_s)) for time_s in times_s)
            accuracy = {**accuracy, split: curve.add(round, *at, evaluation.accuracy)}
        if split not in evaluations or round >= evaluations[split][0]:
            evaluations = {**evaluations, split: (round, evaluation)}
        return replace(self, accuracy=accuracy, evaluations=evaluations)

    def _after(self, state: RunState, attempt: RoundRecord) -> "RunSnapshot":
        counted = self.events - self.ahead
        for event in attempt.events:
            counted[event.kind] += event.count
        return replace(
            self,
            **{name: getattr(state, name) for name in _OF_THE_STATE},
            clients=self.clients.after_round(state.table, attempt.observations, attempt.misses),
            clamped=int(state.table.clamped.sum()),
            events=counted,
            ahead=Counter(),
            missed=self.missed + Counter(miss.kind for miss in attempt.misses),
        )


def greatest_and_median(values: FloatArray) -> tuple[float, float]:
    """The greatest value and the median; 0 without values. Ten times as fast as numpy's median for few values."""
    if not values.size:
        return 0.0, 0.0
    ordered, last = np.sort(values), values.size - 1
    return float(ordered[-1]), float(ordered[last // 2] + ordered[(last + 1) // 2]) / 2


def _slowest(observations: Sequence[Observation], time_scale: float) -> tuple[float, float]:
    """The communication and device time of the slowest exchange, at the emulated scale; NaN without an exchange."""
    if not observations:
        return math.nan, math.nan
    timing = max(observations, key=attrgetter("latency_s")).timing
    return timing.communication_s / time_scale, timing.device_s


def _exchange(o: Observation, *, total_delays: bool) -> tuple[float, ...]:
    """The times of an exchange, in the order of EXCHANGE, none below 0: Prometheus takes sums that fall for resets."""
    error_s, parts_s = o.timing_error_s(total_delays=total_delays), (max(0.0, part_s) for part_s in parts_of(o.timing))
    return o.timing.round_trip_s, error_s, o.drawn_down_s, o.drawn_up_s, *parts_s
