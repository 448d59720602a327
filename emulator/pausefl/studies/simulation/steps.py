"""Simulates the steps of an asynchronous server without network and training, for `engine.simulate`."""

from dataclasses import replace
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from pausefl_proto.arrays import FloatArray, IntArray
from pausefl_server.records import Miss, Observation, RoundRecord, Timing
from pausefl_server.rounds.attempt import attempt_record, next_release
from pausefl_server.rounds.choosing import choose, context_of, free_places, updates_needed
from pausefl_server.rounds.deadline import round_timeout_s
from pausefl_server.selection import Oracle
from pausefl_server.settings import ServerSettings
from pausefl_server.state import RunState


class Answers(NamedTuple):
    """Answers to one round, (K,) each: when they arrive, in the laws' seconds, elapsed times, and latencies."""

    came_s: FloatArray
    took_s: FloatArray
    latency_s: FloatArray


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


class Steps:
    """The jobs under way, kept from step to step."""

    def __init__(self, server: ServerSettings, state: RunState, oracle: Oracle | None) -> None:
        self._server, self._state, self._oracle = server, state, oracle
        self._out: list[_Job] = []
        self._given, self._now_s = 0, 0.0
        self._has_tiers = state.policy.tiers_of(state.policy_state, state.table) is not None

    def step(self, t: int, answers: Answers) -> RoundRecord:
        """The record of step t. `answers`: by row, those to the jobs handed out in it."""
        table, elapsed_s = self._state.table, self._state.elapsed_s
        oldest = t - self._server.asynchronous.staleness_max
        given_up = [job for job in self._out if job.step < oldest or not table.connected[job.row]]
        self._out = sorted(set(self._out).difference(given_up))
        ended = [job._replace(ends_s=self._now_s, elapsed_s=elapsed_s, is_missed=True) for job in given_up]
        chosen: list[int] = []
        needed, answered = updates_needed(self._server, self._state, self._at_work()), list[int]()
        while (lacks := needed - len(answered)) > 0 and not (self._has_tiers and answered):
            taken = {*chosen, *(job.row for job in ended)}
            while given := self._hand_out(t, elapsed_s, lacks, answered, taken, answers):
                chosen += given
                needed = updates_needed(self._server, self._state, self._at_work())
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
        self, t: int, elapsed_s: float, lacks: int, answered: list[int], taken: set[int], answers: Answers
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
        came_s, took_s, latency_s = (of_each[rows] for of_each in answers)
        deadline_s = round_timeout_s(server, self._state.table, rows) / server.time_scale
        ends_s, is_missed = self._now_s + np.minimum(came_s, deadline_s), came_s >= deadline_s
        counts_s, elapsed_by_row_s = ends_s, elapsed_s + np.where(is_missed, deadline_s, took_s)
        if self._has_tiers:
            counts_s, elapsed_by_row_s = (np.full(len(rows), each.max()) for each in (counts_s, elapsed_by_row_s))
        for each in zip(counts_s, rows, ends_s, elapsed_by_row_s, latency_s, is_missed, strict=True):
            counts, row, *of_job = (value.item() for value in each)
            heappush(self._out, _Job(counts, self._given, row, t, self._now_s, *of_job))
        self._given += len(rows)
        chosen: list[int] = rows.tolist()
        return chosen

    def _observed(self, t: int, job: _Job) -> Observation:
        seen = answer(self._state, job.row, job.ends_s - job.began_s, job.latency_s, self._server)
        return replace(seen, staleness=t - job.step, handed_out_s=job.began_s, came_back_s=job.ends_s)


def answer(state: RunState, row: int, came_s: float, latency_s: float, server: ServerSettings) -> Observation:
    """The server's observation of an answer that arrives after `came_s`, in the laws' seconds."""
    table = state.table
    release = next_release(table, row, server.budget)
    timing = Timing(came_s * server.time_scale)
    return Observation(table.ids[row], timing, latency_s, int(table.n_examples[row]), *release)
