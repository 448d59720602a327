"""Counts totals over the attempts at a run's rounds. A long log is read once, round by round, and not kept."""

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from pausefl.experiment.tables import ClientGroup
from pausefl.results.accounting import UnansweredJobs
from pausefl.results.selections import ChoiceCounter, per_client_round
from pausefl.results.stored_summary import Failure, Suspicion, TimingError
from pausefl_client.link import Mode
from pausefl_server.clients import ClientTable
from pausefl_server.host_limits import DOUBTS, clients_behind
from pausefl_server.records import LogEvent, RoundRecord

_MOST_FAILURES = 5


class RunTally:
    """Counts over a run's attempts and events. Those named as keys of summary.json are what `Summary` says of these."""

    def __init__(
        self,
        records: Iterable[RoundRecord],
        unfinished: Iterable[RoundRecord] = (),
        late_events: Iterable[LogEvent] = (),
        *,
        groups: Mapping[str, ClientGroup] | None = None,
        mode: Mode = "additive",
        released_before: Mapping[str, int] | None = None,
        broken_off: Iterable[Mapping[str, float]] = (),
    ) -> None:
        """Count `records` (rounds), `unfinished` (failed attempts at the next round) and `late_events` (those after).

        `mode`: whether a drawn delay is added to an exchange or is its total duration.
        `released_before`: by client, how many releases its ledger counted when it first joined, if no event tells it.
        `broken_off`: for each end of the run, how long clients had had the jobs that it broke off.
        """
        self.missed_jobs: Counter[str] = Counter()
        self.unneeded_jobs = 0
        self.failed_attempts = 0
        self.events: Counter[str] = Counter()
        """How many events of each kind there were, including those after the last round."""
        self.overruns = 0
        """Exchanges whose update was ready later than the drawn total allows, so they took longer than that total."""
        self.unanswered = UnansweredJobs()
        self._choices = ChoiceCounter(groups or {})
        self._is_total = mode == "total"
        self._failures: Counter[str] = Counter()
        self._capped: Counter[tuple[str, str]] = Counter()
        self._asked = array("q")  # how many clients each round asked
        self._doubts: Counter[str] = Counter()  # suspect rounds, by reason
        self._doubted: defaultdict[str, Counter[str]] = defaultdict(Counter)  # suspect rounds, by reason and client
        self._released_before = dict(released_before or {})  # releases on each client's ledger when it first joined
        self._selection_s = array("d")
        self._errors_s = array("d")
        self._at_work_s = sum(sum(had_s.values()) for had_s in broken_off)  # over all clients
        self._staleness = Counter[int]()
        for record in records:
            self._add_round(record)
        for attempt in unfinished:
            self.failed_attempts += 1
            self._add_attempt(attempt)
        late = tuple(late_events)
        self._add_events(late)
        self.unanswered.settle(late)

    @property
    def failures(self) -> list[Failure]:
        return [{"reason": reason, "jobs": jobs} for reason, jobs in self._failures.most_common(_MOST_FAILURES)]

    @property
    def suspect_because(self) -> dict[str, Suspicion]:
        return {
            doubt: {"rounds": count, "advice": DOUBTS[doubt], "clients": dict(self._doubted[doubt].most_common())}
            for doubt, count in self._doubts.most_common()
        }

    @property
    def selection_s_median(self) -> float | None:
        return float(np.median(self._selection_s)) if self._selection_s else None

    def clients_at_work(self, elapsed_s: float) -> float:
        """How many clients had a job, on average over the run's elapsed time."""
        return self._at_work_s / elapsed_s if elapsed_s else 0.0

    def idle_share(self, elapsed_s: float, places: int | None) -> float | None:
        """The mean share of empty places over `elapsed_s`. `places` None: the most clients that a round asked."""
        places = places or max(self._asked, default=0)
        return max(0.0, 1 - self.clients_at_work(elapsed_s) / places) if places else None

    @property
    def staleness(self) -> dict[str, float] | None:
        if not self._staleness:
            return None
        total = sum(steps * updates for steps, updates in self._staleness.items())
        return {"mean": total / self._staleness.total(), "max": max(self._staleness)}

    @property
    def asked_per_round(self) -> list[int] | None:
        return [min(self._asked), max(self._asked)] if self._asked else None

    @property
    def timing_error_s(self) -> TimingError:
        """The median and the 99 % quantile of the exchanges' timing errors; both None without exchanges."""
        if not self._errors_s:
            return {"p50": None, "p99": None}
        p50, p99 = np.quantile(np.frombuffer(self._errors_s), (0.5, 0.99))
        return {"p50": float(p50), "p99": float(p99)}

    @property
    def had_spent(self) -> bool:
        """Whether some client's ledger counted releases when it first joined. Clients may keep ledgers across runs."""
        return any(self._released_before.values())

    @property
    def selections_by_group(self) -> dict[str, dict[str, Any]]:
        """How often each group's clients were chosen after they joined: in total, and per client and eligible round.

        Failed attempts are not counted, as they are not rounds.
        """
        return {
            name: {
                "clients": group.clients,
                "join_round": group.join_round,
                "selections_after_join": int(group.chosen.sum()),
                "per_client_round": per_client_round([group]),
            }
            for name, group in self._choices.choices().items()
        }

    def capped(self, table: ClientTable) -> dict[str, dict[str, int]]:
        """By client, reported values that were cut: "stated examples" as reported; others with how often each was."""
        found: dict[str, dict[str, int]] = {}
        for row in np.flatnonzero(table.stated_examples > table.n_examples).tolist():
            found[table.ids[row]] = {"stated examples": int(table.stated_examples[row])}
        for (client_id, what), times in (+self._capped).items():  # without those of count 0
            found.setdefault(client_id, {})[what] = times
        return found

    def _add_round(self, record: RoundRecord) -> None:
        self.failed_attempts += len(record.failed_attempts)
        for attempt in record.attempts:
            self._add_attempt(attempt)
        self._choices.add(record)
        for doubt in record.suspect:
            self._doubts[doubt] += 1
            self._doubted[doubt].update(clients_behind(doubt, record.observations))
        self._selection_s.append(record.selection_s)
        self._asked.append(len(set(record.chosen)))
        for o in record.observations:
            self._staleness[o.staleness] += 1
            self._errors_s.append(o.timing_error_s(total_delays=self._is_total))
            before_upload_s = o.timing.download_s + o.timing.injected_down_s + o.timing.device_s
            self.overruns += before_upload_s > o.drawn_down_s + o.drawn_up_s

    def _add_attempt(self, attempt: RoundRecord) -> None:
        missed = attempt.missed
        answered_s = sum(o.came_back_s - o.handed_out_s for o in attempt.observations)
        self._at_work_s += answered_s + sum(miss.at_work_s for miss in attempt.misses)
        self.missed_jobs.update(miss.kind for miss in missed)
        self.unneeded_jobs += len(attempt.misses) - len(missed)
        self._failures.update(miss.reason for miss in missed if miss.kind == "refused")
        self._add_events(attempt.events)
        self.unanswered.add(attempt)

    def _add_events(self, events: Iterable[LogEvent]) -> None:
        for event in events:
            self.events[event.kind] += event.count
            if event.kind == "joined":
                self._released_before.setdefault(event.client_id, event.released)
            elif event.kind == "capped":
                self._capped[event.client_id, event.detail] += event.count
