"""What the attempts at a run's rounds come to, counted one by one: a long log is read once, and not kept."""

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from pausefl.config.tables import ClientGroup
from pausefl.results.accounting import UnansweredJobs
from pausefl.results.selections import ChoiceCounter
from pausefl_client.link import Mode
from pausefl_server.clients import ClientTable
from pausefl_server.host_limits import HostLimits, advice
from pausefl_server.records import LogEvent, Observation, RoundRecord
from pausefl_server.rounds.pending_events import count_of

_MOST_FAILURES = 5


class RunTally:
    """Counts of a run's attempts and events, as summary.json has them."""

    def __init__(
        self,
        records: Iterable[RoundRecord],
        unfinished: Iterable[RoundRecord] = (),
        late_events: Iterable[LogEvent] = (),
        *,
        groups: Mapping[str, ClientGroup] | None = None,
        mode: Mode = "additive",
        released_before: Mapping[str, int] | None = None,
        limits: HostLimits | None = None,
    ) -> None:
        """Count a log: its rounds, the failed attempts at the round after them, and the events after those.

        `mode`: whether delays are added to an exchange, or are its total. `limits`: by which rounds were doubted.
        `released_before`: what clients came with first, where the events do not tell.
        """
        self.missed_jobs: Counter[str] = Counter()
        """Chosen clients without an update, by kind, but for those that were not needed."""
        self.unneeded_jobs = 0
        self.failed_attempts = 0
        self.events: Counter[str] = Counter()
        """How many events of each kind there were, those after the last round included."""
        self.overruns = 0
        """Exchanges that took longer than the total drawn for them: the update was ready after it was due."""
        self.unanswered = UnansweredJobs()
        self._choices = ChoiceCounter(groups or {})
        self._is_total = mode == "total"
        self._failures: Counter[str] = Counter()
        self._capped: Counter[tuple[str, str]] = Counter()
        self._limits = limits or HostLimits()
        self._asked = array("q")  # how many clients, by round
        self._doubts: Counter[str] = Counter()
        self._doubted: defaultdict[str, Counter[str]] = defaultdict(Counter)  # by doubt, and by client
        self._released_before = dict(released_before or {})  # by client, when it first joined
        self._selection_s = array("d")
        self._errors_s = array("d")  # measured minus drawn
        for record in records:
            self._add_round(record)
        for attempt in unfinished:
            self._add_failed(attempt)
        late = tuple(late_events)
        self._add_events(late)
        self.unanswered.settle(late)

    @property
    def failures(self) -> list[dict[str, Any]]:
        """What clients said when a job failed with them, and how many jobs did so; the few most frequent first."""
        return [{"reason": reason, "jobs": jobs} for reason, jobs in self._failures.most_common(_MOST_FAILURES)]

    @property
    def suspect_because(self) -> dict[str, dict[str, Any]]:
        """By reason to doubt a round: in how many it held, what to do, and in how many by which client's account."""
        return {
            doubt: {"rounds": count, "advice": advice(doubt), "clients": dict(self._doubted[doubt].most_common())}
            for doubt, count in self._doubts.most_common()
        }

    @property
    def selection_s_median(self) -> float | None:
        """The median time of a selection; None without rounds."""
        return float(np.median(self._selection_s)) if self._selection_s else None

    @property
    def asked_per_round(self) -> list[int] | None:
        """The fewest and the most clients that a round asked, without failed attempts; None without rounds."""
        return [min(self._asked), max(self._asked)] if self._asked else None

    @property
    def timing_error_s(self) -> dict[str, float | None]:
        """Quantiles of how far measured time was from drawn time, without sign: what network and software added.

        Measured is communication; where delays are total, the round trip. With a sign, a client that held its messages
        too short, or states delays that were not, would hide among the others.
        """
        if not self._errors_s:
            return {"p50": None, "p99": None}
        p50, p99 = np.quantile(np.abs(np.frombuffer(self._errors_s)), (0.5, 0.99))
        return {"p50": float(p50), "p99": float(p99)}

    @property
    def had_spent(self) -> bool:
        """Whether a client first came with releases on its ledger: where it keeps that is its own choice."""
        return any(self._released_before.values())

    @property
    def selections_by_group(self) -> dict[str, dict[str, Any]]:
        """How often each group's clients were chosen from when they joined, also per client and round they could be.

        Without failed attempts, which are no rounds.
        """
        return {
            name: {
                "clients": group.clients,
                "join_round": group.join_round,
                "selections_after_join": int(group.chosen.sum()),
                "per_client_round": group.per_client_round,
            }
            for name, group in self._choices.choices().items()
        }

    def capped(self, table: ClientTable) -> dict[str, dict[str, int]]:
        """What clients said of themselves and was cut, by client: the examples they stated, and how often what else."""
        found: dict[str, dict[str, int]] = {}
        for row in np.flatnonzero(table.stated_examples > table.n_examples).tolist():
            found[table.ids[row]] = {"stated examples": int(table.stated_examples[row])}
        for (client_id, what), times in self._capped.items():
            found.setdefault(client_id, {})[what] = times
        return found

    def _add_round(self, record: RoundRecord) -> None:
        for failed in record.failed_attempts:
            self._add_failed(failed)
        self._add_attempt(record)
        self._choices.add(record)
        for doubt in record.suspect:
            self._doubts[doubt] += 1
            self._doubted[doubt].update(self._limits.clients_beyond(doubt, record.observations))
        self._selection_s.append(record.selection_s)
        self._asked.append(len(set(record.chosen)))
        for observation in record.observations:
            self._add_observation(observation)

    def _add_failed(self, attempt: RoundRecord) -> None:
        self.failed_attempts += 1
        self._add_attempt(attempt)

    def _add_attempt(self, attempt: RoundRecord) -> None:
        missed = attempt.missed
        self.missed_jobs.update(miss.kind for miss in missed)
        self.unneeded_jobs += len(attempt.misses) - len(missed)
        self._failures.update(miss.reason for miss in missed if miss.kind == "refused")
        self._add_events(attempt.events)
        self.unanswered.add(attempt)

    def _add_events(self, events: Iterable[LogEvent]) -> None:
        for event in events:
            self.events[event.kind] += count_of(event)
            if event.kind == "joined":
                self._released_before.setdefault(event.client_id, event.released)
            elif event.kind == "capped":
                self._capped[event.client_id, event.detail] += 1

    def _add_observation(self, o: Observation) -> None:
        timing, drawn_s = o.timing, o.drawn_down_s + o.drawn_up_s
        measured_s = timing.round_trip_s if self._is_total else timing.communication_s
        self._errors_s.append(measured_s - drawn_s)
        self.overruns += timing.download_s + timing.injected_down_s + timing.device_s > drawn_s
