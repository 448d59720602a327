"""Folds a run's log through a policy, round by round, and compares what it chooses with what was chosen."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pausefl.experiment.experiment import Experiment
from pausefl.experiment.server_records import selected_policy
from pausefl.results.reading import open_database
from pausefl.runtime.client.plan import client_plan
from pausefl.runtime.server.plan import oracle_of, settings_of
from pausefl_proto.errors import ConfigError, PauseflError
from pausefl_server.records import RoundRecord
from pausefl_server.rounds.choosing import choose
from pausefl_server.selection.base import Oracle, Policy
from pausefl_server.settings import ServerSettings
from pausefl_server.state import RunState, replay
from pausefl_server.storage.round_log import RoundLog, read_failed_attempts
from pausefl_server.storage.seals import check_seals


@dataclass(frozen=True)
class RecordedLog:
    """A run's log, as it stands."""

    records: Collection[RoundRecord]
    unfinished: Sequence[RoundRecord]
    """The failed attempts at the round after the last."""


@dataclass(frozen=True)
class ReplayedChoice:
    """An attempt at a round: what the log has, and what the policy chooses knowing what the run knew then."""

    round: int
    attempt: int
    recorded: tuple[str, ...]
    chosen: tuple[str, ...]

    @property
    def is_same(self) -> bool:
        """Whether both are the same clients, drawn equally often; their order says nothing."""
        return sorted(self.recorded) == sorted(self.chosen)

    @property
    def shared(self) -> int:
        """How many of the clients chosen were chosen in the log, too."""
        return len(set(self.chosen) & set(self.recorded))


def read_log(run_dir: Path) -> RecordedLog:
    """The log of a run directory, also of a run that goes on; ConfigError where it has no round, or was changed."""
    with open_database(run_dir) as database:
        check_seals(run_dir / "run.db", database)
        log = RecordedLog(RoundLog(partial(open_database, run_dir)), read_failed_attempts(database))
    if not len(log.records):
        raise ConfigError(f"{run_dir}: no round was played there, so there is nothing to replay")
    return log


def replay_log(experiment: Experiment, log: RecordedLog) -> list[ReplayedChoice]:
    """The choices of the experiment's policy at every attempt of a log, each from what the log says before it.

    ConfigError where the policy cannot choose from what was known.
    """
    return choices_on(log, *rules_of(experiment))


def rules_of(experiment: Experiment) -> tuple[Policy, ServerSettings, Oracle | None]:
    """By what clients are chosen in a replay, which knows rounds alone; ConfigError where a run has none."""
    if experiment.is_asynchronous:
        raise ConfigError('server.mode = "asynchronous": replay plays rounds alone; play this experiment by run')
    policy, clients = selected_policy(experiment.selection), client_plan(experiment)
    settings = settings_of(experiment, "", clients)
    return policy, settings, oracle_of(policy, clients.links, settings.tau_min_s)


def choices_on(
    log: RecordedLog, policy: Policy, settings: ServerSettings, oracle: Oracle | None = None
) -> list[ReplayedChoice]:
    """The same for a policy, a server's settings and, where the policy is told them, the true latency laws."""
    choices: list[ReplayedChoice] = []

    def choose_again(attempt: RoundRecord, state: RunState) -> None:
        selection = choose(settings, state, oracle, attempt.round, attempt.attempt)
        chosen = tuple(state.table.ids[row] for row in selection.rows)
        choices.append(ReplayedChoice(attempt.round, attempt.attempt, attempt.chosen, chosen))

    replay(
        policy,
        settings.seed,
        log.records,
        tau_min_s=settings.tau_min_s,
        examples_max=settings.examples_max,
        unfinished=log.unfinished,
        before_each=choose_again,
    )
    return choices


def check_same(choices: Sequence[ReplayedChoice]) -> None:
    """Return where the policy chose what the log has; PauseflError that names the first round where it did not."""
    differing = [choice for choice in choices if not choice.is_same]
    if differing:
        first = differing[0]
        raise PauseflError(
            f"round {first.round}, attempt {first.attempt}: the policy chooses {', '.join(first.chosen)}, the log has"
            f" {', '.join(first.recorded)}; {len(differing)} of {len(choices)} choices differ"
        )
