"""What another policy would have chosen and waited, estimated from one run's log.

The policy plays the run again from round 1. A client that it chooses answers as the log says where the log has that
client in that round: every delay is a function of (seed, client, round), whatever else was chosen. Elsewhere its answer
is drawn from what the log has of the client, and of a client that the log never has from another client's. An answer
that the log did not wait for is drawn from the client's later ones; where it has none, it comes at its bound. Each of
many draws first resamples every client's answers with replacement (the bootstrap; Efron, Annals of Statistics, 1979),
so that the interval over the draws holds what the log leaves open of the laws as well.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from pausefl.config.experiment import Experiment
from pausefl.config.server_records import selected_policy
from pausefl.offline.outcomes import LoggedAnswer, LoggedOutcomes, check_log_suffices, is_open
from pausefl.offline.replay import RecordedLog
from pausefl.runtime.server.plan import oracle_of, settings_of
from pausefl.simulation.engine import releases_of_misses
from pausefl_proto.arrays import FloatArray, IntArray
from pausefl_proto.draws import generator
from pausefl_server.clients import ClientTable, only_labels
from pausefl_server.records import LogEvent, Miss, Observation, RoundRecord, Timing
from pausefl_server.rounds.budget_exhaustion import used_up
from pausefl_server.rounds.choosing import choose
from pausefl_server.rounds.deadline import answers_needed
from pausefl_server.selection.base import Oracle, Policy
from pausefl_server.settings import ServerSettings
from pausefl_server.state import RunState

_EXOGENOUS = ("joined", "left")
"""Events that do not follow from what was chosen; all others are those of the log's own choices."""


@dataclass(frozen=True)
class Counterfactual:
    """A policy's rounds on a log: an axis of draws, then one of rounds."""

    client_ids: tuple[str, ...]
    """Every client of the log, sorted."""
    waited_s: FloatArray
    """(draws, rounds) the round's latency."""
    extrapolated: IntArray
    """(draws, rounds) how many of the clients chosen did what the log's round does not tell."""
    never_observed: IntArray
    """(draws, rounds) how many of those have no answer in all of the log."""
    at_bounds: IntArray
    """(draws, rounds) how many answers come at a lower bound of their latency, as the log has no later ones."""
    asked: IntArray
    """(draws, rounds) how many clients were chosen."""
    max_epsilon_spent: FloatArray
    """(draws,) the greatest leakage of any client at the end."""
    chosen: IntArray
    """(draws, clients) how often each client was chosen."""
    first: tuple[tuple[str, ...], ...]
    """The clients chosen in each round of the first draw."""


def play_on_log(experiment: Experiment, log: RecordedLog, draws: int) -> Counterfactual:
    """Play the experiment's policy on a log, `draws` times; ConfigError where it needs what the log lacks."""
    policy = selected_policy(experiment.selection)
    records = tuple(log.records)  # all at once: every draw plays them again
    outcomes = LoggedOutcomes.of(records)
    check_log_suffices(policy, experiment.selection.policy, outcomes)
    settings, oracle = settings_of(experiment, ""), oracle_of(experiment)
    play = partial(_play, policy, settings, oracle, records, outcomes)
    return _gathered(outcomes.client_ids, [play(draw) for draw in range(draws)])


@dataclass(frozen=True)
class _PlayedDraw:
    chosen: list[tuple[str, ...]]
    waited_s: list[float]
    extrapolated: list[int]
    never_observed: list[int]
    at_bounds: list[int]
    max_epsilon_spent: float


def _play(
    policy: Policy,
    settings: ServerSettings,
    oracle: Oracle | None,
    records: Sequence[RoundRecord],
    outcomes: LoggedOutcomes,
    draw: int,
) -> _PlayedDraw:
    rng = generator(settings.seed, "counterfactual", draw)
    pools = outcomes.resampled(rng)
    state = RunState.start(policy, settings.seed, tau_min_s=settings.tau_min_s, examples_max=settings.examples_max)
    played = _PlayedDraw([], [], [], [], [], 0.0)
    for record in records:
        state.before_round(record.round, _events(record, state.table))
        state.before_round(record.round, used_up(state.table, settings.budget))
        if not state.table.eligible().size:
            answers: dict[str, LoggedAnswer] = {}
            chosen: tuple[str, ...] = ()
            waited_s = 0.0
        else:
            selection, _ = choose(settings, state, oracle, record.round, record.attempt)
            chosen = tuple(state.table.ids[row] for row in selection.rows)
            answers = {c: outcomes.answer(record.round, c, pools, rng) for c in chosen}
            imagined = _record(record, chosen, answers, state.table, settings, policy, outcomes)
            waited_s = imagined.round_latency_s
            state.after_round(imagined)
            state.before_round(record.round, releases_of_misses(imagined, state.table, settings.budget))
        played.chosen.append(chosen)
        played.waited_s.append(waited_s)
        unseen = [c for c in answers if not outcomes.tells(record.round, c, waited_s)]
        played.extrapolated.append(len(unseen))
        played.never_observed.append(sum(not pools.get(c) for c in unseen))
        played.at_bounds.append(sum(is_open(a) and a.latency_s <= waited_s for a in answers.values()))
    spent = float(state.table.epsilon_spent.max(initial=0.0))
    return replace(played, max_epsilon_spent=spent)


def _events(record: RoundRecord, table: ClientTable) -> list[LogEvent]:
    """Who came and went before a round, whatever was chosen. What known clients had spent is the log's own history."""
    events = [event for attempt in record.attempts for event in attempt.events if event.kind in _EXOGENOUS]
    return [replace(e, released=0, epsilon_spent=0.0) if e.client_id in table.row_of else e for e in events]


def _record(
    record: RoundRecord,
    chosen: tuple[str, ...],
    answers: Mapping[str, LoggedAnswer],
    table: ClientTable,
    settings: ServerSettings,
    policy: Policy,
    outcomes: LoggedOutcomes,
) -> RoundRecord:
    """The round as the server would have written it down: it ends with the answer that is the last one needed."""
    needed = answers_needed(len(answers), policy.m - settings.spare, settings.spare, settings.quorum)
    came_s = sorted(a.latency_s for a in answers.values() if isinstance(a, Observation) or is_open(a))
    is_answered = len(came_s) >= needed
    waited_s = came_s[needed - 1] if is_answered else max(answer.latency_s for answer in answers.values())
    observations: list[Observation] = []
    misses: list[Miss] = []
    for client_id, answer in answers.items():
        if answer.latency_s > waited_s:
            misses.append(Miss(client_id, "unneeded", waited_s, waited_s))
        elif isinstance(answer, Miss) and not is_open(answer):
            misses.append(answer)
        else:
            observations.append(_observation(record.round, answer, table, settings, outcomes))
    return RoundRecord(
        round=record.round,
        attempt=record.attempt,
        chosen=chosen,
        weights=None,
        observations=tuple(observations),
        events=(),
        round_latency_s=waited_s,
        wall_clock_s=0.0,
        selection_s=0.0,
        model_digest="",
        misses=tuple(misses),
    )


def _observation(
    round: int, answer: LoggedAnswer, table: ClientTable, settings: ServerSettings, outcomes: LoggedOutcomes
) -> Observation:
    """The logged answer, as a release of this history: its ε_i follows from how often the client was chosen here."""
    if isinstance(answer, Miss):  # not waited for in the log: it comes at its bound
        answer = Observation(answer.client_id, Timing(answer.waited_s), answer.latency_s, 0, 0, 0.0, 0.0)
    row, budget = table.row_of[answer.client_id], settings.budget
    i = int(table.released[row]) + 1 if budget else 0
    return replace(
        answer,
        n_examples=int(table.n_examples[row]),
        participation=i,
        epsilon=budget.epsilon(i) if budget else 0.0,
        epsilon_spent=budget.spent(i) if budget else 0.0,
        loss=outcomes.loss(answer.client_id, round),
        statistics=only_labels(answer.statistics),
    )


def _gathered(client_ids: tuple[str, ...], draws: Sequence[_PlayedDraw]) -> Counterfactual:
    place = {client_id: i for i, client_id in enumerate(client_ids)}
    chosen = np.zeros((len(draws), len(client_ids)), np.int64)
    for row, draw in zip(chosen, draws, strict=True):
        np.add.at(row, [place[c] for of_round in draw.chosen for c in of_round], 1)
    return Counterfactual(
        client_ids=client_ids,
        waited_s=np.array([draw.waited_s for draw in draws]),
        extrapolated=np.array([draw.extrapolated for draw in draws]),
        never_observed=np.array([draw.never_observed for draw in draws]),
        at_bounds=np.array([draw.at_bounds for draw in draws]),
        asked=np.array([[len(set(c)) for c in draw.chosen] for draw in draws]),
        max_epsilon_spent=np.array([draw.max_epsilon_spent for draw in draws]),
        chosen=chosen,
        first=tuple(draws[0].chosen),
    )
