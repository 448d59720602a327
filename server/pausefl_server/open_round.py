"""A round between its job and its commit: who still owes an answer, what has come, and what becomes of it."""

from dataclasses import dataclass, field, replace

from pausefl_server.clients import ClientTable
from pausefl_server.messages import Dispatch, Refusal, Update
from pausefl_server.records import Event, Observation
from pausefl_server.selection.base import Policy, Selection
from pausefl_server.settings import ServerSettings

# A latency is a divisor in μ̄; a clock can tick twice at the same instant.
_LEAST_LATENCY_S = 1e-6


@dataclass(slots=True)
class Flight:
    """A job that is out, and the answers to it. Times are the server's clock."""

    job: Dispatch
    chosen: tuple[str, ...]
    """In selection order, in which updates are combined whoever answers first."""
    due: dict[str, float]
    """Who still owes an answer, and until when it is waited for."""
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

    def give_up(self, now_s: float) -> list[str]:
        """Wait no longer for those who are overdue; returns them."""
        overdue = [client_id for client_id, until_s in self.due.items() if until_s <= now_s]
        for client_id in overdue:
            del self.due[client_id]
        return overdue

    def arrived(self) -> list[int]:
        """The positions in `chosen` of those whose updates came."""
        return [i for i, client_id in enumerate(self.chosen) if client_id in self.updates]


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


def reconciled(message: Update | Refusal) -> Event:
    """What the log is to know of a release whose update was not used: it has left, so it is spent."""
    release = message.release
    return Event(
        "reconciled",
        message.client_id,
        "spent on an update that was not used",
        epsilon_spent=release.epsilon_spent,
        released=release.participation,
    )


def inspect(flight: Flight, policy: Policy, table: ClientTable, selection: Selection) -> list[int]:
    """Show the policy the updates while they are at hand; the positions of those that may enter the model."""
    arrived = flight.arrived()
    vectors = [flight.updates[flight.chosen[i]].vector for i in arrived]
    inspection = policy.inspect(table, selection.rows[arrived], vectors)
    if inspection is None:
        return arrived
    for i, found in zip(arrived, inspection.statistics, strict=True):
        observation = flight.observations[flight.chosen[i]]
        statistics = {**observation.statistics, **found}
        flight.observations[flight.chosen[i]] = replace(observation, statistics=statistics)
    return [i for i, is_admitted in zip(arrived, inspection.admitted, strict=True) if is_admitted]
