"""Replays a run's log with a policy, round by round, and compares the policy's choices with the recorded ones."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pausefl.experiment.experiment import Experiment
from pausefl.experiment.server_records import selected_policy
from pausefl.runtime.client.plan import client_plan
from pausefl.runtime.server.plan import oracle_of, settings_of
from pausefl_proto.errors import ConfigError, PauseflError
from pausefl_server.records import RoundRecord
from pausefl_server.rounds.choosing import choose, context_of
from pausefl_server.selection.base import Oracle, Policy
from pausefl_server.settings import ServerSettings
from pausefl_server.state import RunState, replay


@dataclass(frozen=True)
class ReplayedChoice:
    """An attempt at a round: the recorded choice, and the policy's choice from what the run knew at that time."""

    round: int
    attempt: int
    recorded: tuple[str, ...]
    chosen: tuple[str, ...]

    @property
    def is_same(self) -> bool:
        """Whether both choices are the same clients, each drawn equally often, in any order."""
        return sorted(self.recorded) == sorted(self.chosen)

    @property
    def shared(self) -> int:
        """How many of the policy's clients were also chosen in the log."""
        return len(set(self.chosen) & set(self.recorded))


def rules_of(experiment: Experiment) -> tuple[Policy, ServerSettings, Oracle | None]:
    """The policy, settings and oracle that choose clients in a replay. ConfigError for an asynchronous experiment."""
    if experiment.is_asynchronous:
        raise ConfigError('server.mode = "asynchronous": replay plays rounds alone; play this experiment by run')
    policy, clients = selected_policy(experiment.selection), client_plan(experiment)
    settings = settings_of(experiment, "", clients)
    return policy, settings, oracle_of(policy, clients.links, settings.tau_min_s)


def choices_on(
    records: Iterable[RoundRecord],
    policy: Policy,
    settings: ServerSettings,
    oracle: Oracle | None = None,
    unfinished: Iterable[RoundRecord] = (),
) -> list[ReplayedChoice]:
    """The choices of `policy` at every attempt of a log, each based on the log before that attempt.

    `oracle` has the true means of latencies, if it needs them. `unfinished` are the failed attempts at the round after
    the last. ConfigError if the policy cannot choose from what was known.
    """
    choices: list[ReplayedChoice] = []

    def choose_again(attempt: RoundRecord, state: RunState) -> None:
        selection = choose(context_of(settings, state, oracle, attempt.round, attempt.attempt), state)
        chosen = tuple(state.table.ids[row] for row in selection.rows)
        choices.append(ReplayedChoice(attempt.round, attempt.attempt, attempt.chosen, chosen))

    fresh = RunState.start(policy, settings.seed, tau_min_s=settings.tau_min_s, examples_max=settings.examples_max)
    replay(fresh, records, unfinished=unfinished, before_each=choose_again)
    return choices


def check_same(choices: Sequence[ReplayedChoice]) -> None:
    """Raise PauseflError if a choice differs from the log; it names the first such round."""
    differing = [choice for choice in choices if not choice.is_same]
    if differing:
        first = differing[0]
        raise PauseflError(
            f"round {first.round}, attempt {first.attempt}: the policy chooses {', '.join(first.chosen)}, the log has"
            f" {', '.join(first.recorded)}; {len(differing)} of {len(choices)} choices differ"
        )
