"""Simulates asynchronous steps without network and training. `engine.simulate` does the same for rounds."""

from dataclasses import replace
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from pausefl.experiment.population.availability import Presence
from pausefl.studies.simulation.curves import Curves, SimulationResult
from pausefl.studies.simulation.engine import Setting, answer, arrivals, refuse_disclosures
from pausefl_proto.arrays import FloatArray, IntArray
from pausefl_server.records import Miss, Observation, RoundRecord
from pausefl_server.rounds.attempt import attempt_record, releases_of_misses
from pausefl_server.rounds.budget_exhaustion import too_few_left, used_up
from pausefl_server.rounds.choosing import choose, context_of, free_places
from pausefl_server.rounds.deadline import round_timeout_s
from pausefl_server.selection import Oracle, Policy
from pausefl_server.settings import ServerSettings
from pausefl_server.state import RunState


class _Job(NamedTuple):
    """A job under way. Jobs are sorted by the time at which they count, so the least is the next to count."""

    counts_s: float
    """The time at which the job counts: when it ends or, with tiers, when the last job of its tier's round ends."""
    number: int
    """How many jobs were handed out before the hand-out of this job. Jobs of one hand-out have the same number."""
    row: int
    step: int
    began_s: float
    ends_s: float
    elapsed_s: float
    """Elapsed time when it counts (see `rounds.elapsed`). The other times are of a clock in the laws' seconds."""
    latency_s: float
    is_missed: bool


def simulate_steps(policy: Policy, setting: Setting, steps: int) -> SimulationResult:
    """Simulate `policy`, whose m is C, for `steps` asynchronous steps of K updates each.

    The latency of a step is the time since the step before, so the sum of latencies is the elapsed time. Regret and
    reward are defined for rounds only, and NaN here. The simulation ends early if budgets leave fewer than K clients,
    or none of those that are there. If no client is at work and none can be asked, the step passes without an update.
    """
    refuse_disclosures(policy)
    server, ids = replace(setting.server, rounds=steps), sorted(setting.laws)
    state = RunState.start(policy, server.seed, tau_min_s=server.tau_min_s, examples_max=server.examples_max)
    play = _Steps(server, state, setting.oracle if policy.needs_oracle else None)
    presence, table = setting.presence or Presence.of_all(ids), state.table
    curves, missed, known = Curves(steps), np.zeros(len(ids), np.int64), np.empty(0, np.int64)
    draws = (of_ids for block in setting.answers_s(steps) for of_ids in zip(*block, strict=True))
    for t, of_ids in enumerate(draws, 1):
        state.before_round(t, [*arrivals(presence, t, setting.examples), *used_up(table, server.budget)])
        if len(known) < len(table):
            known = np.searchsorted(ids, table.ids)
        began_s = state.elapsed_s
        if too_few_left(table, server.asynchronous.buffer) or (table.connected.any() and not table.eligible().size):
            break
        record = play.step(t, *(of_id[known] for of_id in of_ids))
        missed[table.rows(miss.client_id for miss in record.missed)] += 1
        state.after_round(record)
        state.before_round(t, releases_of_misses(record, table, server.budget))
        gained = np.array([[np.nan, np.nan, np.nan, state.elapsed_s - began_s]])
        curves.add(t, gained, table.epsilon_spent.max())
    return curves.result(table, missed)


class _Steps:
    """The jobs under way, kept from step to step."""

    def __init__(self, server: ServerSettings, state: RunState, oracle: Oracle | None) -> None:
        self._server, self._state, self._oracle = server, state, oracle
        self._out: list[_Job] = []
        self._given, self._now_s = 0, 0.0
        self._has_tiers = state.policy.tiers_of(state.policy_state, state.table) is not None

    def step(self, t: int, *answers_s: FloatArray) -> RoundRecord:
        """The record of step t. `answers_s`: the answers of clients that get a job in it, (K,) each, by row."""
        table, elapsed_s, buffer = self._state.table, self._state.elapsed_s, self._server.asynchronous.buffer
        oldest = t - self._server.asynchronous.staleness_max
        given_up = [job for job in self._out if job.step < oldest or not table.connected[job.row]]
        self._out = sorted(set(self._out).difference(given_up))
        ended = [job._replace(ends_s=self._now_s, elapsed_s=elapsed_s, is_missed=True) for job in given_up]
        chosen: list[int] = []
        needed, answered = buffer, list[int]()
        while (lacks := needed - len(answered)) > 0 and not (self._has_tiers and answered):
            taken = {*chosen, *(job.row for job in ended)}
            while given := self._hand_out(t, elapsed_s, lacks, answered, taken, *answers_s):
                chosen += given
                needed = max(1, self._state.policy.updates_needed(table, self._at_work(), buffer))
            if not self._out:
                break
            ended.append(heappop(self._out))
            while self._has_tiers and self._out and self._out[0][:2] == ended[-1][:2]:
                ended.append(heappop(self._out))
            self._now_s, elapsed_s = ended[-1].counts_s, max(elapsed_s, *(job.elapsed_s for job in ended))
            answered = [job.row for job in ended if not job.is_missed]
        observations = [self._observed(t, job) for job in ended if not job.is_missed]
        scale, waits = self._server.time_scale, [(job.row, job.ends_s - job.began_s) for job in ended if job.is_missed]
        misses = [Miss(table.ids[row], "timeout", wait_s * scale, wait_s, "", wait_s) for row, wait_s in waits]
        record = attempt_record(t, 1, [table.ids[row] for row in chosen], observations, misses)
        return replace(record, elapsed_s=elapsed_s)

    def _at_work(self) -> IntArray:
        return np.array([job.row for job in self._out], np.int64)

    def _hand_out(
        self,
        t: int,
        elapsed_s: float,
        lacks: int,
        answered: list[int],
        taken: set[int],
        came_s: FloatArray,
        took_s: FloatArray,
        latency_s: FloatArray,
    ) -> list[int]:
        """Give free places to idle clients that are not in `taken`; returns the rows of the chosen clients."""
        server, at_work = self._server, self._at_work()
        busy = taken.union(at_work.tolist())
        idle = [row for row in self._state.table.eligible().tolist() if row not in busy]
        free = free_places(server, self._state, t, idle, at_work, lacks, answered, self._given)
        if free is None:
            return []
        context = context_of(server, self._state, self._oracle, t, self._given, free=free)
        rows = choose(context, self._state, free).rows
        deadline_s = round_timeout_s(server, self._state.table, rows) / server.time_scale
        ends_s, is_missed = self._now_s + np.minimum(came_s[rows], deadline_s), came_s[rows] >= deadline_s
        counts_s, elapsed_by_row_s = ends_s, elapsed_s + np.where(is_missed, deadline_s, took_s[rows])
        if self._has_tiers:
            counts_s, elapsed_by_row_s = (np.full(len(rows), each.max()) for each in (counts_s, elapsed_by_row_s))
        for each in zip(counts_s, rows, ends_s, elapsed_by_row_s, latency_s[rows], is_missed, strict=True):
            counts, row, *of_job = (value.item() for value in each)
            heappush(self._out, _Job(counts, self._given, row, t, self._now_s, *of_job))
        self._given += len(rows)
        chosen: list[int] = rows.tolist()
        return chosen

    def _observed(self, t: int, job: _Job) -> Observation:
        seen = answer(self._state, job.row, job.ends_s - job.began_s, job.latency_s, self._server)
        return replace(seen, staleness=t - job.step, handed_out_s=job.began_s, came_back_s=job.ends_s)
