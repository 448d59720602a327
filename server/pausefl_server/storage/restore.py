"""Restores a server's state when it starts: replays the log, and loads the model that the log names."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from pausefl_proto.errors import ConfigError
from pausefl_proto.wire import Vector, digest
from pausefl_server.clients import ClientTable
from pausefl_server.model.global_model import GlobalModel
from pausefl_server.records import LogEvent, Observation, RoundRecord, unsettled
from pausefl_server.selection.base import Policy
from pausefl_server.settings import ServerSettings
from pausefl_server.state import RunState, StartingPoint, replay
from pausefl_server.storage.checkpoint import Checkpoint
from pausefl_server.storage.store import Store


def restore(
    settings: ServerSettings,
    policy: Policy,
    models: "StoredModels",
    after_each: Callable[[RoundRecord, RunState], None],
    *,
    back_to: int | None = None,
    say: Callable[[str], None],
    forget: Callable[[int], None] = lambda _: None,
) -> StartingPoint:
    """The point from which a run starts or goes on: after the log's last round, or the one before if its model is torn.

    With `back_to`, it is after that round. Before later rounds are taken back, `say` is called with the cost, and
    `forget` with the last round to keep, to remove other data of later rounds. ConfigError if the models are missing.
    """
    store = models.store
    last = store.log().last
    begun = last if back_to is None else _checked(back_to, last, models)
    found = models.find(begun)
    if found is None and back_to is None:
        begun = last - 1  # a crash while the last model was written
        found = models.find(begun, is_torn=True)
    if found is None:
        raise ConfigError(
            f"checkpoints: the models of rounds {last - 1} and {last}, which the log ends with, are missing or damaged:"
            f" restore slot-0.f32 and slot-1.f32, or go on by --back-to ROUND, one of {_listed(models)}"
            f" ({cost(store, models.rounds()[0])})"
        )
    theta, optimizer_state = found
    if begun < last:
        say(cost(store, begun))
        forget(begun)
        store.go_back_to(begun, optimizer_state, is_private=settings.budget is not None)
    if begun == 0:
        models.checkpoint.write(0, models.theta_0)
        models.checkpoint.sync()
        initial, known = digest(models.theta_0), store.meta("initial_digest")
        if known not in (None, initial):
            raise ConfigError(f"this run directory was begun with another initial_digest ({known}, now {initial})")
        store.set_meta("initial_digest", initial)
    log = store.log()
    fresh = RunState.start(policy, settings.seed, tau_min_s=settings.tau_min_s, examples_max=settings.examples_max)
    state = replay(fresh, log, after_each, unfinished=log.failed_attempts())
    late = store.late_events()
    at_work = dict(state.at_work)  # by client, the last job of which no asynchronous step has used the answer
    replace(state, table=ClientTable(), at_work=at_work).before_round(begun + 1, late)
    jobs = {number: given for number, _ in at_work.values() if (given := models.theta(number - 1)) is not None}
    if any(event.kind == "joined" for event in late):
        store.keep_first_hellos()
    left = (LogEvent("left", c, "the server was restarted") for c in _connected(state, late))  # none is connected yet
    events = (told for _, told in _told(store) if isinstance(told, LogEvent))
    lost = _lost_updates(events) if settings.keeps_late_updates else []
    return StartingPoint(
        state,
        GlobalModel.start(
            theta,
            settings.optimizer,
            optimizer_state,
            model_size=settings.manifest.model_size,
            statistics_size=settings.manifest.statistics.size,
        ),
        (*late, *left, *_owed(state, late, at_work, store, settings), *lost),
        attempts=store.attempts(),
        at_work={client_id: key for client_id, key in at_work.items() if key[0] in jobs},
        models=jobs,
    )


def cost(store: Store, back_to: int) -> str:
    """The cost of going back to round `back_to`, as a sentence: the rounds to repeat, and the ε spent on them."""
    spent, last = _spent_after(back_to, store), store.log().last
    rounds = f"round {last}" if last == back_to + 1 else f"rounds {back_to + 1} to {last}"
    plays = f"going back to round {back_to} plays {rounds} again"
    if not any(spent.values()):
        return plays
    most, total = max(spent.values()), sum(spent.values())
    return f"{plays}: the epsilon spent since, up to {most:.4g} by a client and {total:.4g} by all, stays spent"


def _spent_after(round: int, store: Store) -> dict[str, float]:
    """The ε that each client has spent since a round, as its answers and other messages reported it."""
    now = dict[str, float]()
    then = {client_id: epsilon for client_id, (_, epsilon) in store.first_hellos().items()}
    for number, told in _told(store):
        if number <= round:
            then[told.client_id] = max(told.epsilon_spent, then.get(told.client_id, 0.0))
        elif isinstance(told, LogEvent) and told.kind == "joined":
            then.setdefault(told.client_id, told.epsilon_spent)  # spent before it joined for the first time
        now[told.client_id] = max(told.epsilon_spent, now.get(told.client_id, 0.0))
    return {client_id: epsilon - then.get(client_id, 0.0) for client_id, epsilon in now.items()}


def _told(store: Store) -> Iterator[tuple[int, LogEvent | Observation]]:
    """Yields the log's events and observations in order, each with the round in or before which it came."""
    log = store.log()
    for record in log:
        for attempt in record.attempts:
            yield from ((record.round, event) for event in attempt.events)
        yield from ((record.round, observation) for observation in record.observations)
    later = (event for attempt in log.failed_attempts() for event in attempt.events)
    yield from ((log.last + 1, event) for event in chain(later, store.late_events()))


@dataclass(frozen=True)
class StoredModels:
    """Finds the stored models that a run can go on from."""

    store: Store
    checkpoint: Checkpoint
    theta_0: Vector

    def find(self, round: int, *, is_torn: bool = False) -> tuple[Vector, Vector | None] | None:
        """θ_t and the server optimizer's state; None if they are missing. θ_0 is made from the seed, not read.

        `is_torn`: the next model is missing. θ_0 then has to be written: else the folder is gone, not torn by a crash.
        """
        if round == 0:
            initial = self.store.meta("initial_digest") or ""
            return None if is_torn and self.checkpoint.load(0, initial) is None else (self.theta_0, None)
        model_digest = self.store.model_digest(round)
        if (kept := self.checkpoint.load_kept(round, model_digest)) is not None:
            return kept
        theta = self.checkpoint.load(round, model_digest)
        if theta is None or round < self.store.log().last - 1:
            return None  # the log has the optimizer's states of the last two rounds alone
        state = self.store.optimizer_state(round)
        return theta, np.empty(0, np.float32) if state is None else state

    def theta(self, round: int) -> Vector | None:
        """θ_t; None if it is missing."""
        found = self.find(round)
        return self.checkpoint.load(round, self.store.model_digest(round)) if found is None else found[0]

    def rounds(self) -> list[int]:
        """All rounds to which the run can go back, the last one first."""
        last = self.store.log().last
        likely = {*self.checkpoint.kept(), last, last - 1, 0}
        return [t for t in sorted(likely, reverse=True) if 0 <= t <= last and self.find(t) is not None]


def _checked(back_to: int, last: int, models: StoredModels) -> int:
    if not 0 <= back_to <= last:
        raise ConfigError(f"back to round {back_to}: must be a round from 0 to {last}, the last that was played")
    if models.find(back_to) is None:
        kept = f"those of rounds {_listed(models)} are (server.checkpoint_every)"
        raise ConfigError(f"back to round {back_to}: its model is not there; {kept}")
    return back_to


def _listed(models: StoredModels) -> str:
    return ", ".join(map(str, models.rounds()))


def _connected(state: RunState, late: list[LogEvent]) -> list[str]:
    connected = {state.table.ids[row] for row in state.table.connected.nonzero()[0]}
    return sorted(connected | {event.client_id for event in late if event.kind == "joined"})


def _owed(
    state: RunState, late: list[LogEvent], at_work: dict[str, tuple[int, int]], store: Store, settings: ServerSettings
) -> list[LogEvent]:
    """Events "unsettled" of the clients that had a job when the server was killed. Each of them may have charged it."""
    store.note_killed()
    number = state.round + 1
    is_over = number > settings.rounds and not settings.is_asynchronous  # clients may have jobs after the last step
    if settings.budget is None or store.has_ended or is_over:
        return []
    if settings.is_asynchronous:
        return [unsettled(client_id, *key) for client_id, key in sorted(at_work.items())]
    attempt = store.attempts().get(number, 1)
    return [unsettled(client_id, number, attempt) for client_id in _connected(state, late)]


def _lost_updates(events: Iterable[LogEvent]) -> list[LogEvent]:
    """A "dropped" event for each late update that was kept for the next model, if the log has no event of its end.

    `events`: all events of a run that keeps late updates, in order.
    """
    kept = dict[str, str]()
    for event in events:
        if event.kind == "late":
            kept[event.client_id] = event.detail
        elif event.kind in ("merged", "dropped"):
            kept.pop(event.client_id, None)
    return [LogEvent("dropped", c, f"{detail}, which the server lost when it was ended") for c, detail in kept.items()]
