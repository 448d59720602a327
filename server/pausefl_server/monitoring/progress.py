"""The server's progress events: rounds, the expected end of budgets, and doubtful measurements."""

import math
import time
from collections.abc import Callable, Hashable
from itertools import islice

from pausefl_process.events import ModelEvaluated, Notice, Report, RollCall, RoundCommitted, WaitingForClients
from pausefl_server.clients import ClientTable
from pausefl_server.host_limits import DOUBTS, still_s
from pausefl_server.monitoring.noise import MOST_NOISE_TO_CLIP, NOISE_REMEDY, in_times
from pausefl_server.monitoring.observer import RunObserver
from pausefl_server.records import Evaluation, RoundRecord
from pausefl_server.settings import ServerSettings
from pausefl_server.state import RunState

# The number of reasons for failures that are reported. Reasons are free text, so each one may be new.
_FAILURES_SAID = 10
# The number of missing clients that are named.
_MISSING_NAMED = 5
# No reader follows rounds faster than this, and each report delays the next round.
_REPORT_EVERY_S = 0.05
# A constant τ_min does not fit if more than this share of at least this many latencies is below it.
_CLAMPED_SHARE = 0.1
_CLAMPS_AFTER = 20
LINES = 20
PER_S = 10.0


class LineLimit:
    """Admits a burst of lines of each kind. The first line of the next burst says how many were left out."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._windows: dict[Hashable, tuple[float, int]] = {}  # its start, and its number of lines

    def admit(self, kind: Hashable, line: str) -> str | None:
        """The line to show. None if there were already `LINES` of its kind within `PER_S` seconds."""
        now_s = self._clock()
        began_s, count = self._windows.get(kind, (now_s, 0))
        hidden = max(0, count - LINES)
        if now_s - began_s >= PER_S:
            began_s, count = now_s, 0
        self._windows[kind] = began_s, count + 1
        if count >= LINES:
            return None
        return f"{line} (and {hidden} more like it before)" if hidden and not count else line


class ProgressReporter(RunObserver):
    """Turns changes of a run's state into progress events, at most one round every 0.05 s."""

    def __init__(self, settings: ServerSettings, report: Report) -> None:
        self._settings = settings
        self._report = report
        self._round = 1  # of the last roll call
        self._minimum = 0  # clients that the first round waits for
        self._connected = 0
        self._expected: frozenset[str] = frozenset()  # for the first round
        self._missing: dict[str, None] = {}  # those of them that are not connected
        self._rejected = 0
        self._limit = LineLimit(time.monotonic)
        self._said: set[str] = set()  # the names of notices that appear only once
        self._failures: set[str] = set()  # the reasons reported
        self._reported_s = float("-inf")  # when a round was last reported

    def waiting(self, minimum: int) -> None:
        """Report how many of the `minimum` clients are missing, now and after each arrival."""
        self._minimum = minimum
        self._expected = self._settings.expected(self._round) if self._settings.expected is not None else frozenset()
        self._missing = dict.fromkeys(sorted(self._expected))
        self._report_waiting()

    def roll_call(self, round: int) -> None:
        """Report the roll call, on which the fleet starts and ends clients."""
        self._round = round
        self._report(RollCall(round))

    def arrived(self, client_id: str, connected: int, round: int) -> None:
        """Report which client joined; before the end of round 1, only the number of connected clients."""
        self._connected = connected
        if round:
            self._notice_sparingly("joined", f"client {client_id} joined", client_id)
        else:
            self._missing.pop(client_id, None)
            self._report_waiting()

    def _report_waiting(self) -> None:
        missing = tuple(islice(self._missing, _MISSING_NAMED))
        self._report(WaitingForClients(self._connected, self._minimum, missing))

    def departed(self, client_id: str, reason: str, connected: int, round: int) -> None:
        """Report which client left and why, if round 1 is over."""
        self._connected = connected
        if round:
            self._notice_sparingly("left", f"client {client_id} left: {reason}", client_id)
        elif client_id in self._expected:
            self._missing[client_id] = None

    def rejected(self, reason: str) -> None:
        self._rejected += 1
        self._notice_sparingly("rejected", reason)

    def _notice_sparingly(self, topic: str, message: str, client: str = "") -> None:
        """Report the message, unless many of its topic were reported just now."""
        if (line := self._limit.admit(topic, message)) is not None:
            self._report(Notice(line, topic, client))

    def noticed(self, message: str, topic: str = "") -> None:
        self._report(Notice(message, topic))

    def evaluated(self, round: int, evaluation: Evaluation) -> None:
        """Report accuracy and loss. When the loss is not finite for the first time, report that the model diverged."""
        loss = evaluation.loss if math.isfinite(evaluation.loss) else None  # JSON has no infinity
        split, accuracy, metric, subset = evaluation.split, evaluation.accuracy, evaluation.metric, evaluation.subset
        self._report(ModelEvaluated(round, split, accuracy, loss, metric, subset))
        if loss is None and self._is_new("diverged"):
            self.noticed(f"the model after round {round} has diverged: its {evaluation.split} loss is not finite")

    def _is_new(self, name: str) -> bool:
        is_new = name not in self._said
        self._said.add(name)
        return is_new

    def round_committed(self, record: RoundRecord, state: RunState, budgets_end: int | None = None) -> None:
        """Report the round, unless another was reported just now. The last round is always reported."""
        self._announce_end(budgets_end, self._settings.updates_needed(state.policy.m))
        self._announce_doubts(record)
        self._announce_failures(record)
        self._announce_clamps(state.table)
        self._announce_noise(record)
        now_s = time.monotonic()
        if now_s - self._reported_s < _REPORT_EVERY_S and record.round < self._settings.rounds:
            return
        self._reported_s = now_s
        privacy = self._settings.privacy
        self._report(
            RoundCommitted(
                round=record.round,
                rounds=self._settings.rounds,
                chosen=record.chosen,
                round_latency_s=record.round_latency_s,
                total_latency_s=state.total_latency_s,
                max_epsilon_spent=float(state.table.epsilon_spent.max(initial=0.0)),
                epsilon_budget=privacy.budget.epsilon_budget if privacy else None,
                privacy_unit=privacy.unit if privacy else None,
                budgets_end_after_round=budgets_end,
                connected=self._connected,
                rejected=self._rejected,
                wall_clock_s=record.wall_clock_s,
                selection_s=record.selection_s,
                suspect=record.suspect,
                suspect_rounds=state.suspect_rounds,
                missed=tuple(miss.client_id for miss in record.missed),
                missed_jobs=state.missed_jobs,
                time_scale=self._settings.time_scale,
            )
        )

    def attempt_failed(self, record: RoundRecord, state: RunState) -> None:
        self._announce_failures(record)
        self.noticed(
            f"no client gave an update in attempt {record.attempt} at round {record.round}, within"
            f" {max((miss.waited_s for miss in record.misses), default=0.0):.3g} s"
        )

    def _announce_end(self, budgets_end: int | None, m: int) -> None:
        """Report once when budgets are expected to end the run."""
        if budgets_end is not None and budgets_end < (rounds := self._settings.rounds) and self._is_new("end"):
            about = f"privacy budgets are expected to be used up about round {budgets_end} of {rounds}"
            self.noticed(f"{about}: fewer than {m} clients would then be left")

    def _announce_doubts(self, record: RoundRecord) -> None:
        """Report once for each reason why measurements are suspect, and what to do."""
        for doubt in filter(self._is_new, record.suspect):
            lasted_s = still_s(doubt, record)
            how_long = f" (for {lasted_s:.1f} s)" if lasted_s else ""
            self.noticed(f"round {record.round} is suspect{how_long}: {DOUBTS[doubt]}", "suspect")

    def _announce_failures(self, record: RoundRecord) -> None:
        """Report why clients gave no update, once for each of the first reasons (`_FAILURES_SAID`)."""
        for miss in record.missed:
            if miss.reason not in self._failures and len(self._failures) < _FAILURES_SAID:
                self._failures.add(miss.reason)
                told = f"client {miss.client_id} gave no update in round {record.round}: {miss.reason}"
                self._report(Notice(told, "failed", miss.client_id))

    def _announce_noise(self, record: RoundRecord) -> None:
        """Report once that the noise of a round's median release exceeds MOST_NOISE_TO_CLIP times the clip bound."""
        released = sorted(o.epsilon for o in record.observations if o.epsilon > 0)
        ratio = 2 / released[len(released) // 2] if released else 0.0
        if ratio > MOST_NOISE_TO_CLIP and self._is_new("noise"):
            self.noticed(f"round {record.round}: noise is {in_times(ratio)} the clip, and grows; {NOISE_REMEDY}")

    def _announce_clamps(self, table: ClientTable) -> None:
        """Report once that many latencies are below a constant τ_min, so that it does not fit the links."""
        answers, clamped = int((table.measured - table.missed).sum()), int(table.clamped.sum())
        if table.tau_min_s is None or answers < _CLAMPS_AFTER:
            return
        if clamped > _CLAMPED_SHARE * answers and self._is_new("clamps"):
            self.noticed(
                f"latency.tau_min_s = {table.tau_min_s:g}: {clamped} of {answers} latencies are below it and count as"
                ' equally fast; set it to the least latency of these links, or to "auto"'
            )
