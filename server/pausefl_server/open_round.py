"""A round between its job and its commit: who still owes an answer, what has come, and what becomes of it."""

from dataclasses import dataclass, field, replace

import numpy as np

from pausefl_process.host_monitor import HostReport
from pausefl_server.clients import ClientTable, FloatArray
from pausefl_server.global_model import GlobalModel
from pausefl_server.messages import Dispatch, Refusal, Update
from pausefl_server.records import LogEvent, Observation, RoundRecord
from pausefl_server.selection.base import Selection
from pausefl_server.settings import ServerSettings
from pausefl_server.state import RunState

# A latency is a divisor in μ̄; a clock can tick twice at the same instant.
_LEAST_LATENCY_S = 1e-6


@dataclass(slots=True)
class OpenRound:
    """A job that is out, and the answers to it. Times are the server's clock."""

    job: Dispatch
    selection: Selection
    selection_s: float
    """How long the policy took to choose."""
    chosen: tuple[str, ...]
    """In selection order, in which updates are combined, in whatever order they come."""
    events: tuple[LogEvent, ...]
    """All that the selection knew and the round before did not."""
    due: dict[str, float]
    """The clients that still owe an answer, and until when each is waited for."""
    updates: dict[str, Update] = field(default_factory=dict)
    observations: dict[str, Observation] = field(default_factory=dict)

    def lacks(self, update: Update) -> bool:
        """Whether this is an answer that is still waited for."""
        return update.round == self.job.round and update.client_id in self.due

    def take(self, update: Update, observation: Observation) -> None:
        """Count an answer that was waited for."""
        del self.due[update.client_id]
        self.updates[update.client_id] = update
        self.observations[update.client_id] = observation

    def returned(self, client_id: str, until_s: float) -> bool:
        """Wait for a client that lost its stream and is back until `until_s`; False when it owes no answer."""
        if client_id not in self.due:
            return False
        self.due[client_id] = until_s
        return True

    def lost(self, client_id: str, until_s: float) -> None:
        """Wait for a client that lost its stream no longer than until `until_s`."""
        if client_id in self.due:
            self.due[client_id] = min(self.due[client_id], until_s)

    def give_up(self, now_s: float) -> list[str]:
        """Wait no longer for those who are overdue; returns them."""
        overdue = [client_id for client_id, until_s in self.due.items() if until_s <= now_s]
        for client_id in overdue:
            del self.due[client_id]
        return overdue

    def arrived(self) -> list[int]:
        """The positions in `chosen` of those whose updates came."""
        return [i for i, client_id in enumerate(self.chosen) if client_id in self.updates]

    def abandoned(self) -> list[LogEvent]:
        """The events to log when the round is given up: all it knew, and what its updates have spent."""
        return [*self.events, *(reconciled(update) for update in self.updates.values())]

    def record(self, model_digest: str, wall_clock_s: float, host: HostReport, settings: ServerSettings) -> RoundRecord:
        """The round as it is logged, once no more answers are waited for."""
        observations = tuple(self.observations[c] for c in sorted(self.observations))
        weights, hosts = self.selection.weights, (o.host for o in observations)
        return RoundRecord(
            round=self.job.round,
            attempt=self.job.attempt,
            chosen=self.chosen,
            weights=None if weights is None else tuple(weights.tolist()),
            observations=observations,
            events=self.events,
            round_latency_s=max((o.latency_s for o in observations), default=0.0),
            wall_clock_s=wall_clock_s,
            selection_s=self.selection_s,
            model_digest=model_digest,
            details=self.selection.details,
            cluster_penalty_s=self.selection.cluster_penalty_s,
            host=host,
            suspect=settings.limits.doubts(host, hosts, settings.signal, total_delays=settings.total_delays),
        )


def observe(update: Update, table: ClientTable, settings: ServerSettings, now_s: float) -> Observation:
    """What the log is to know of an update that is taken at `now_s`; its client has a row in `table`."""
    row = table.row_of[update.client_id]
    latency_s = update.timing.signal_s(settings.signal, settings.time_scale)
    waited_s = update.timing.server_wait_s + now_s - update.arrived_s
    return Observation(
        client_id=update.client_id,
        timing=replace(update.timing, server_wait_s=waited_s),
        latency_s=max(latency_s, _LEAST_LATENCY_S),
        n_examples=int(table.n_examples[row]),
        participation=update.release.participation,
        epsilon=update.release.epsilon,
        epsilon_spent=max(update.release.epsilon_spent, float(table.epsilon_spent[row])),
        bytes_down=update.bytes_down,
        bytes_up=update.bytes_up,
        drawn_down_s=update.drawn_down_s,
        drawn_up_s=update.drawn_up_s,
        loss=update.loss if "loss" in settings.disclosed else None,
        statistics=update.statistics if "labels" in settings.disclosed else {},
        host=update.host,
    )


def reconciled(message: Update | Refusal) -> LogEvent:
    """What the log is to know of a release whose update was not used: it has left, so it is spent."""
    release = message.release
    return LogEvent(
        "reconciled",
        message.client_id,
        "spent on an update that was not used",
        epsilon_spent=release.epsilon_spent,
        released=release.participation,
    )


def aggregate(open_round: OpenRound, state: RunState, model: GlobalModel, settings: ServerSettings) -> GlobalModel:
    """The model moved by the updates that came and that the policy admits; the same one where there are none."""
    admitted = _inspect(open_round, state)
    if not admitted:
        return model
    selection = open_round.selection
    weights: FloatArray
    if selection.weights is None:
        weights = state.table.n_examples[selection.rows[admitted]].astype(np.float64)
    else:
        weights = selection.weights[admitted]
    updates = [open_round.updates[open_round.chosen[i]].vector for i in admitted]
    return model.updated(updates, weights, settings.aggregation, settings.optimizer)


def _inspect(open_round: OpenRound, state: RunState) -> list[int]:
    """Show the policy the updates while they are at hand; the positions of those that may enter the model."""
    arrived, observations = open_round.arrived(), open_round.observations
    vectors = [open_round.updates[open_round.chosen[i]].vector for i in arrived]
    inspection = state.policy.inspect(state.table, open_round.selection.rows[arrived], vectors)
    if inspection is None:
        return arrived
    for i, found in zip(arrived, inspection.statistics, strict=True):
        observation = observations[open_round.chosen[i]]
        statistics = {**observation.statistics, **found}
        observations[open_round.chosen[i]] = replace(observation, statistics=statistics)
    return [i for i, is_admitted in zip(arrived, inspection.admitted, strict=True) if is_admitted]
