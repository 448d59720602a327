"""Estimates another policy's choices and waits from one run's log.

The policy plays the run again from round 1. If the log has a chosen client in that round, the client answers as logged:
each delay is a function of (seed, client, round), not of the other clients. Otherwise its answer is drawn from the
client's logged answers or, if it has none, from another client's. An answer that the log did not wait for is drawn from
the client's later answers; without any, it arrives at its lower bound. A round in which no client gives an update is
tried again, as a server does. Each draw first resamples every client's answers with replacement (the bootstrap; Efron,
Annals of Statistics, 1979). So the interval over the draws includes the uncertainty about the latency laws.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pausefl.experiment.experiment import Experiment
from pausefl_offline.outcomes import LoggedAnswer, LoggedOutcomes, check_log_suffices, is_open
from pausefl_offline.replay import rules_of
from pausefl_proto.arrays import FloatArray
from pausefl_proto.draws import generator
from pausefl_server.clients import ClientTable, only_labels
from pausefl_server.records import Miss, Observation, RoundRecord, Timing
from pausefl_server.rounds.attempt import attempt_end, attempt_record, next_release, releases_of_misses
from pausefl_server.rounds.budget_exhaustion import too_few_left, used_up
from pausefl_server.rounds.choosing import choose, context_of
from pausefl_server.rounds.deadline import answers_needed
from pausefl_server.selection.base import Oracle, Policy
from pausefl_server.settings import ServerSettings
from pausefl_server.state import RunState

_EXOGENOUS = ("joined", "left")
"""The kinds of events that do not depend on which clients were chosen. All others follow from the log's choices."""


@dataclass
class PlayedRound:
    """One round of a draw. `chosen` is of its last attempt; all other fields include all its attempts."""

    chosen: tuple[str, ...] = ()
    waited_s: float = 0.0
    failed_attempts: int = 0
    """How many attempts failed, as no client gave an update."""
    without_update: bool = False
    """Whether the round was played and all attempts failed that the server's settings or the budgets allow. A run would
    have ended there."""
    beyond_budgets: bool = False
    """Whether the round was not played, as too few clients had budget left. A run would have ended."""
    extrapolated: int = 0
    """How many chosen clients have an outcome that the same round of the log does not show."""
    never_observed: int = 0
    """How many of the extrapolated clients have no outcome anywhere in the log."""
    at_bounds: int = 0
    """How many answers arrive at a lower bound of their latency, as the log has no later answers."""
    asked: int = 0
    """How many clients were chosen."""


@dataclass(frozen=True)
class Counterfactual:
    """The rounds of a policy on a log."""

    client_ids: tuple[str, ...]
    """The ids of all clients of the log, sorted."""
    draws: Sequence[Sequence[PlayedRound]]
    """The rounds of each draw."""
    max_epsilon_spent: FloatArray
    """(draws,) the greatest ε that any client has spent at the end."""

    def by_round(self, name: str) -> NDArray[Any]:
        """(draws, rounds) the values of one field of `PlayedRound`."""
        return np.array([[getattr(each, name) for each in rounds] for rounds in self.draws])


def play_on_log(experiment: Experiment, log: Iterable[RoundRecord], draws: int) -> Counterfactual:
    """Play the experiment's policy on a log, `draws` times. ConfigError if the policy needs data that the log lacks."""
    policy, settings, oracle = rules_of(experiment)
    records = tuple(log)  # kept in memory, as every draw goes through them
    outcomes = LoggedOutcomes.of(records)
    check_log_suffices(policy, experiment.selection.policy, outcomes)
    played = (_ImaginedRun(policy, settings, oracle, outcomes, draw).play(records) for draw in range(draws))
    rounds, epsilon_spent = zip(*played, strict=True)
    return Counterfactual(outcomes.client_ids, rounds, np.array(epsilon_spent))


class _ImaginedRun:
    """One draw: the state of the policy's own rounds, and the pools that answers are drawn from."""

    def __init__(
        self, policy: Policy, settings: ServerSettings, oracle: Oracle | None, outcomes: LoggedOutcomes, draw: int
    ) -> None:
        self.settings, self.oracle, self.outcomes = settings, oracle, outcomes
        self.rng = generator(settings.seed, "counterfactual", draw)
        self.pools = outcomes.resampled(self.rng)
        tau_min_s, examples_max = settings.tau_min_s, settings.examples_max
        self.state = RunState.start(policy, settings.seed, tau_min_s=tau_min_s, examples_max=examples_max)
        self.needed = settings.updates_needed(policy.m)

    def play(self, records: Sequence[RoundRecord]) -> tuple[list[PlayedRound], float]:
        """The rounds, and the greatest ε that any client has spent at their end."""
        rounds = [self._round(record) for record in records]
        return rounds, float(self.state.table.epsilon_spent.max(initial=0.0))

    def _round(self, record: RoundRecord) -> PlayedRound:
        """Play a round as a server does: an attempt without an update is repeated, up to the settings' limit."""
        played, state, first = PlayedRound(), self.state, record.attempts[0].attempt
        events = [event for attempt in record.attempts for event in attempt.events if event.kind in _EXOGENOUS]
        known = state.table.row_of  # of these clients, what they spent in the log does not count
        events = [replace(e, released=0, epsilon_spent=0.0) if e.client_id in known else e for e in events]
        state.before_round(record.round, events)
        for attempt in range(first, first + self.settings.rounds_without_update_max):
            state.before_round(record.round, used_up(state.table, self.settings.budget))
            if too_few_left(state, self.needed) or not state.table.eligible().size:
                played.beyond_budgets = attempt == first
                played.without_update = not played.beyond_budgets
                return played
            imagined = self._attempt(record.round, attempt, played)
            (state.after_round if imagined.observations else state.after_failed_attempt)(imagined)
            state.before_round(record.round, releases_of_misses(imagined, state.table, self.settings.budget))
            if imagined.observations:
                return played
            played.failed_attempts += 1
        played.without_update = True
        return played

    def _attempt(self, round: int, attempt: int, played: PlayedRound) -> RoundRecord:
        """Play an attempt at a round and add its counts to `played`; returns its record."""
        table, outcomes = self.state.table, self.outcomes
        selection = choose(context_of(self.settings, self.state, self.oracle, round, attempt), self.state)
        played.chosen = tuple(table.ids[row] for row in selection.rows)
        answers = {c: outcomes.answer(round, c, self.pools, self.rng) for c in played.chosen}
        imagined = self._record(round, attempt, played.chosen, answers)
        waited_s = imagined.round_latency_s
        unseen = [c for c in answers if not outcomes.tells(round, c, waited_s)]
        played.waited_s += waited_s
        played.extrapolated += len(unseen)
        played.never_observed += sum(not self.pools.get(c) for c in unseen)
        played.at_bounds += sum(is_open(a) and a.latency_s <= waited_s for a in answers.values())
        played.asked += len(answers)
        return imagined

    def _record(
        self, round: int, attempt: int, chosen: tuple[str, ...], answers: Mapping[str, LoggedAnswer]
    ) -> RoundRecord:
        """The record of the attempt as a server would write it. The attempt ends with the last needed answer."""
        settings = self.settings
        beyond = int((~self.state.policy.counted(self.state.table)[self.state.table.rows(answers)]).sum())
        needed = answers_needed(len(answers), self.needed, settings.spare, settings.quorum, beyond)
        latencies_s = np.array([answer.latency_s for answer in answers.values()])
        never = [isinstance(answer, Miss) and not is_open(answer) for answer in answers.values()]
        end_s, in_time, _ = attempt_end(np.where(never, np.inf, latencies_s), needed, np.inf)
        waited_s = min(end_s, float(latencies_s.max()))
        observations: list[Observation] = []
        misses: list[Miss] = []
        for (client_id, answer), is_in_time in zip(answers.items(), in_time.tolist(), strict=True):
            if is_in_time:
                observations.append(_observation(round, answer, self.state.table, settings, self.outcomes))
            elif isinstance(answer, Miss) and answer.latency_s <= waited_s:
                misses.append(answer)
            else:
                misses.append(Miss(client_id, "unneeded", waited_s, waited_s, "", waited_s))
        return attempt_record(round, attempt, chosen, observations, misses)


def _observation(
    round: int, answer: LoggedAnswer, table: ClientTable, settings: ServerSettings, outcomes: LoggedOutcomes
) -> Observation:
    """The logged answer as an observation of this draw: its ε_i follows from how often the client was chosen here."""
    if isinstance(answer, Miss):  # the log did not wait for this answer, so it arrives at its lower bound
        answer = Observation(answer.client_id, Timing(answer.waited_s), answer.latency_s, 0, 0, 0.0, 0.0)
    row = table.row_of[answer.client_id]
    i, epsilon, spent = next_release(table, row, settings.budget)
    return replace(
        answer,
        n_examples=int(table.n_examples[row]),
        participation=i,
        epsilon=epsilon,
        epsilon_spent=spent,
        loss=outcomes.loss(answer.client_id, round),
        statistics=only_labels(answer.statistics),
    )
