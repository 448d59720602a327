"""Which model and accuracies a resumed run goes on with: the last, earlier or kept ones. It reports what is missing."""

import shutil
import signal
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pausefl.results.reading import CLIENTS, open_database, read_columns
from pausefl.results.tally import RunTally
from pausefl.runtime.server.model_files import ModelFiles
from pausefl_client.privacy.ledger import ReleaseKey
from pausefl_client.privacy.release import Releaser
from pausefl_proto.errors import ConfigError, EvaluatorLost, PauseflError
from pausefl_proto.wire import Manifest, TensorSpec, Vector, digest
from pausefl_server.model.optimizers import Optimizer, ServerOptimizer
from pausefl_server.model.staleness import Asynchronous
from pausefl_server.records import Evaluation, LogEvent, Miss
from pausefl_server.selection.policies.baselines import All
from pausefl_server.service import RunResult
from pausefl_server.storage import checkpoint as checkpoints
from pausefl_server.storage.checkpoint import Checkpoint
from pausefl_server.storage.restore import cost
from pausefl_server.storage.store import Store
from rigs.coordinator import CoordinatorRig
from rigs.databases import opened_connections
from rigs.federation import BUDGET, PRIVATE, SIZE, Federation, clients, federation, log_of, private
from rigs.log import observation, record, theta

ADAM = ServerOptimizer("fedadam", learning_rate=0.1)


async def play(folder: Path, rounds: int, **changes: Any) -> tuple[RunResult, list[str]]:
    """Begin or resume the run in `folder` up to round `rounds`; returns its result and its notices."""
    privacy = {c: private(folder / "ledgers", c) for c in "ab"}
    settings = {"privacy": PRIVATE, "optimizer": ADAM, "checkpoint_every": 2, "minimum_clients": 2} | changes
    try:
        async with federation(folder, All(1), rounds=rounds, **settings) as run, clients() as some:
            for c in "ab":
                some.start(c, await run.port, privacy=privacy[c])
            return await run.finished(), notices(run)
    finally:
        for p in privacy.values():
            p.ledger.close()


def notices(run: Federation) -> list[str]:
    """The notices of a finished run."""
    said = [run.events.get_nowait() for _ in range(run.events.qsize())]
    return [event["message"] for event in said if event["kind"] == "notice"]


async def refused(folder: Path, **changes: Any) -> str:
    with pytest.raises(ConfigError) as error:
        async with federation(folder, All(1), rounds=9, privacy=PRIVATE, optimizer=ADAM, **changes) as run:
            await run.finished()
    return str(error.value)


def tear(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / "checkpoints" / name
        path.write_bytes(path.read_bytes()[:-4])


async def test_a_first_round_whose_model_is_torn_is_played_again(tmp_path: Path) -> None:
    await play(tmp_path, 1)
    tear(tmp_path, "slot-1.f32")
    await play(tmp_path, 2)
    assert [(r.round, r.attempt) for r in log_of(tmp_path)] == [(1, 2), (2, 1)]


@pytest.mark.parametrize(("rounds", "loss"), [(5, "torn"), (5, "gone"), (1, "gone")])
async def test_rounds_whose_models_are_lost_are_not_taken_back_silently(tmp_path: Path, rounds: int, loss: str) -> None:
    await play(tmp_path, rounds, checkpoint_every=3)
    if loss == "torn":
        tear(tmp_path, "slot-0.f32", "slot-1.f32")
    else:
        shutil.rmtree(tmp_path / "checkpoints")
    before = [r.round for r in log_of(tmp_path)]
    line = await refused(tmp_path)
    left = "3, 0" if loss == "torn" else "0"
    last = f"the models of rounds {rounds - 1} and {rounds}, which the log ends with, are missing or damaged"
    assert last in line
    assert f"--back-to ROUND, one of {left} (going back to round" in line
    assert [r.round for r in log_of(tmp_path)] == before


async def test_going_back_says_its_cost_and_keeps_what_was_spent(tmp_path: Path) -> None:
    before, _ = await play(tmp_path, 5)
    tear(tmp_path, "slot-0.f32", "slot-1.f32")
    after, said = await play(tmp_path, 6, back_to=2)
    most = BUDGET.spent(5) - BUDGET.spent(2)
    assert any(
        f"going back to round 2 plays rounds 3 to 5 again: the epsilon spent since, up to {most:.4g} by a client and"
        f" {2 * most:.4g} by all, stays spent" in line
        for line in said
    )
    records = log_of(tmp_path)
    assert [(r.round, r.attempt) for r in records] == [(1, 1), (2, 1), (3, 2), (4, 2), (5, 2), (6, 1)]
    assert [o.participation for r in records for o in r.observations if o.client_id == "a"] == [1, 2, 6, 7, 8, 9]
    assert after.state.table.epsilon_spent.tolist() == [BUDGET.spent(9)] * 2
    assert before.state.table.epsilon_spent.tolist() == [BUDGET.spent(5)] * 2


@pytest.mark.parametrize("back_to", [0, 2])
def test_what_clients_came_with_is_known_once_hellos_are_taken_back(store: Store, tmp_path: Path, back_to: int) -> None:
    """Clients join again with releases of this run; the first hellos still count. Going back twice changes nothing."""
    write_rounds(store, 4, spent_before=3)
    for _ in range(2):
        store.go_back_to(back_to)
        store.save_late_events(back_to + 1, [*store.late_events(), *(came(c, 9) for c in "ab")])
    assert store.first_hellos() == {"a": (0, 0.0), "b": (3, BUDGET.spent(3))}
    before = {client_id: released for client_id, (released, _) in store.first_hellos().items()}
    log, late = store.log(), store.late_events()
    assert RunTally(log, late_events=late, released_before=before).had_spent
    assert not RunTally(log, late_events=late, released_before=before | {"b": 0}).had_spent
    with open_database(tmp_path) as database:
        clients = read_columns(database, CLIENTS)
    assert dict(zip(clients["client_id"], clients["spent_before"], strict=True)) == {"a": 0.0, "b": BUDGET.spent(3)}


def test_the_cost_of_going_back_counts_what_answered_nothing(store: Store) -> None:
    """It counts b's late release, and what b had spent when it joined."""
    write_rounds(store, 4, spent_before=3)
    store.save_late_events(5, [LogEvent("reconciled", "b", "late", epsilon_spent=BUDGET.spent(8), released=8)])
    spent = [BUDGET.spent(4) - BUDGET.spent(2), BUDGET.spent(8) - BUDGET.spent(5)]
    assert f"up to {max(spent):.4g} by a client and {sum(spent):.4g} by all" in cost(store, 2)
    spent = [BUDGET.spent(4), BUDGET.spent(8) - BUDGET.spent(3)]
    assert f"up to {max(spent):.4g} by a client and {sum(spent):.4g} by all" in cost(store, 0)
    store.go_back_to(0)
    came_again = [*store.late_events(), came("a", 4), came("b", 8)]
    store.save_late_events(1, came_again)
    answers = observation("a", participation=5, epsilon=BUDGET.epsilon(5), epsilon_spent=BUDGET.spent(5))
    store.commit_round(record(1, answers, events=tuple(came_again)))
    spent[0] = BUDGET.spent(5)
    assert f"up to {max(spent):.4g} by a client and {sum(spent):.4g} by all" in cost(store, 0)


def test_a_release_that_is_told_of_late_makes_going_back_no_dearer(store: Store) -> None:
    """a's first release is reported late, after the answer with its second one."""
    write_rounds(store, 2, spent_before=0)
    late = LogEvent("reconciled", "a", "late", epsilon_spent=BUDGET.spent(1), released=1)
    answer = observation("a", participation=3, epsilon=BUDGET.epsilon(3), epsilon_spent=BUDGET.spent(3))
    store.commit_round(record(3, events=(late,)))
    store.commit_round(record(4, answer))
    assert f"up to {BUDGET.epsilon(3):.4g} by a client and {BUDGET.epsilon(3):.4g} by all" in cost(store, 3)


def test_going_back_keeps_comings_and_goings_in_order_and_what_first_hellos_said(store: Store) -> None:
    """a left before the attempt that failed, and came back after it."""
    store.commit_round(record(1, events=(came("a", 0), came("b", 0))))
    store.save_failed_attempt(record(2, events=(LogEvent("left", "a"),), chosen=("b",)))
    store.save_late_events(2, [came("a", 0)])
    store.go_back_to(1)
    assert [event.kind for event in store.late_events()] == ["left", "joined"]
    for t, released in ((2, 2), (3, 3)):
        store.commit_round(record(t, events=(came("c", released),)))
    store.go_back_to(0)
    assert store.first_hellos()["c"] == (2, BUDGET.spent(2))


async def test_what_a_client_came_with_is_known_after_a_restart_before_its_first_round(tmp_path: Path) -> None:
    """a joins again with a release of this run, which does not count as an earlier run's."""
    with closing(Store(tmp_path / "run.db")) as store:
        store.save_late_events(1, [came("a", 0), came("b", 3)])
    privacy = private(tmp_path / "ledgers", "a")
    Releaser(privacy).release(np.ones(SIZE, np.float32), ReleaseKey("another-run", 1, 1, ""))
    privacy.ledger.close()
    await play(tmp_path, 1)
    with closing(Store(tmp_path / "run.db")) as store:
        assert [e.released for e in store.rounds()[0].events if (e.kind, e.client_id) == ("joined", "a")] == [1]
        assert store.first_hellos() == {"a": (0, 0.0), "b": (3, BUDGET.spent(3))}


def test_going_back_forgets_later_states_of_the_optimizer_and_seals_what_is_left(tmp_path: Path) -> None:
    store = Store(tmp_path / "run.db")
    write_rounds(store, 2, spent_before=0)
    for t in (3, 4):
        store.commit_round(record(t), optimizer_state=theta(t))
    store.go_back_to(3)
    np.testing.assert_equal(store.optimizer_state(3), theta(3))
    assert store.optimizer_state(4) is None
    store.go_back_to(0)
    store.close()
    Store(tmp_path / "run.db").close()  # this verifies the seals


@pytest.mark.parametrize("is_private", [True, False])
def test_going_back_tells_in_order_what_its_rounds_did_and_may_have_cost(store: Store, is_private: bool) -> None:
    """A failed attempt at round 2, then round 2, which b did not answer, then what came after it."""
    store.commit_round(record(1, events=(came("a", 0), came("b", 0))))
    missed = {"chosen": ("b",), "misses": (Miss("b", "timeout", 1.0, 1.0),)}
    store.save_failed_attempt(record(2, events=(LogEvent("left", "a"),), **missed))
    answer = observation("a", participation=int(is_private), epsilon_spent=0.5)
    store.commit_round(record(2, answer, attempt=2, events=(came("a", 0),), misses=missed["misses"]))
    store.save_late_events(3, [LogEvent("retired", "a")])
    store.go_back_to(1, is_private=is_private)
    told = [(event.kind, event.client_id) for event in store.late_events()]
    unsettled, spent = ([("unsettled", "b")], [("reconciled", "a")]) if is_private else ([], [])
    assert told == [("left", "a"), *unsettled, ("joined", "a"), *unsettled, *spent, ("retired", "a")]


def came(client_id: str, released: int) -> LogEvent:
    return LogEvent("joined", client_id, n_examples=10, epsilon_spent=BUDGET.spent(released), released=released)


def write_rounds(store: Store, rounds: int, spent_before: int) -> None:
    """Commit rounds that a and b answer; b had made `spent_before` releases when it joined."""
    for t in range(1, rounds + 1):
        events = (came("a", 0), came("b", spent_before)) if t == 1 else ()
        answers = [
            observation(c, participation=i, epsilon=BUDGET.epsilon(i), epsilon_spent=BUDGET.spent(i))
            for c, i in (("a", t), ("b", spent_before + t))
        ]
        store.commit_round(record(t, *answers, events=events))


async def model_of_one(folder: Path, rounds: int = 5, **settings: Any) -> Vector:
    """The final model of a run of one client without privacy."""
    async with federation(folder, All(1), rounds=rounds, minimum_clients=1, **settings) as run, clients() as some:
        some.start("a", await run.port)
        return (await run.finished()).theta


@pytest.mark.parametrize("is_asynchronous", [False, True])
async def test_a_run_goes_back_with_its_optimizer(tmp_path: Path, is_asynchronous: bool) -> None:
    """Without noise, rounds that are played again give the same model; only their attempt differs."""
    steps: dict[str, Any] = {"is_asynchronous": is_asynchronous, "asynchronous": Asynchronous(1, 1), "optimizer": ADAM}
    whole = await model_of_one(tmp_path / "one", **steps)
    await model_of_one(tmp_path / "two", **steps, checkpoint_every=2)
    again = await model_of_one(tmp_path / "two", **steps, checkpoint_every=2, back_to=2)
    assert [r.attempt for r in log_of(tmp_path / "two")] == [1, 1, 2, 2, 2]
    assert again.tobytes() == whole.tobytes()


class OneLongStep(Optimizer):
    """An optimizer that changes its state in place, and that has no state after round 2."""

    def start(self, model_size: int) -> Vector:
        return np.ones(model_size, np.float32)

    def step(self, theta: Vector, change: Vector, state: Vector) -> tuple[Vector, Vector]:
        if not state.size:
            return theta + change, state
        state += 1
        return theta + change * state, state if state[0] < 3 else state[:0]


@pytest.mark.parametrize("stopped", [1, 3])
async def test_a_resumed_run_has_the_state_that_its_optimizer_left(tmp_path: Path, stopped: int) -> None:
    """This includes a state that has become empty."""
    played = (("whole", 5), ("resumed", stopped), ("resumed", 5))
    whole, _, resumed = [await model_of_one(tmp_path / name, n, optimizer=OneLongStep()) for name, n in played]
    assert whole.tobytes() == resumed.tobytes()


async def test_going_back_needs_a_round_with_a_model(tmp_path: Path) -> None:
    await play(tmp_path, 5, checkpoint_every=3)
    assert "back to round 9: must be a round from 0 to 5" in await refused(tmp_path, back_to=9)
    assert "its model is not there; those of rounds 5, 4, 3, 0 are (" in await refused(tmp_path, back_to=2)


async def test_a_resume_without_a_disk_leaves_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await play(tmp_path, 2)
    shutil.rmtree(tmp_path / "checkpoints")
    (tmp_path / "checkpoints").write_text("no folder")
    opened = opened_connections(monkeypatch)
    with pytest.raises(PauseflError, match=rf"run directory {tmp_path}: cannot be read and written \(.*\)"):
        await play(tmp_path, 3)
    assert opened
    for connection in opened:
        with pytest.raises(sqlite3.ProgrammingError, match="closed database"):
            connection.execute("SELECT 1")


def test_kept_models_come_back_whole_or_not_at_all(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.keep(25, theta(1.0), theta(2.0))
    checkpoint.keep(50, theta(3.0), None)
    assert checkpoint.kept() == [25, 50]
    np.testing.assert_equal(checkpoint.load_kept(25, digest(theta(1.0))), (theta(1.0), theta(2.0)))
    assert checkpoint.load_kept(50, digest(theta(1.0))) is None
    path = tmp_path / "round-00000025.f32"
    data = path.read_bytes()
    for torn in (b"", data[:10], data[:-1], data[:5000] + bytes([data[5000] ^ 1]) + data[5001:]):
        path.write_bytes(torn)
        assert checkpoint.load_kept(25, digest(theta(1.0))) is None
    checkpoint.close()


@pytest.mark.parametrize(("bytes_max", "kept"), [(3 * 4100, [100, 125, 150]), (1, [125, 150])])
def test_the_oldest_kept_models_make_room_and_the_last_two_stay_however_great_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bytes_max: int, kept: list[int]
) -> None:
    monkeypatch.setattr(checkpoints, "KEPT_BYTES_MAX", bytes_max)
    checkpoint = Checkpoint(tmp_path)
    for t in range(25, 151, 25):
        checkpoint.keep(t, theta(t), None)
    assert checkpoint.kept() == kept
    checkpoint.keep(50, theta(50), None)  # the run went back to an earlier round
    assert 50 in checkpoint.kept()
    checkpoint.close()


async def test_a_client_that_came_later_is_a_newcomer_again_and_stays_charged(tmp_path: Path) -> None:
    """Until it joins, its row is missing, but what it has spent still counts."""
    async with CoordinatorRig(tmp_path, rounds=4, minimum_clients=1, policy=All(1)).running() as r:
        a = await r.join("a", manual=True)
        for t in range(1, 5):
            await a.next_job()
            if t == 2:
                b = await r.join("b", released=5)
            await a.answer(t)
        await r.played()
        assert r.coordinator.state.table.joined_round.tolist() == [1, 3]
    with closing(Store(tmp_path / "run.db")) as store:
        store.go_back_to(0)
    async with CoordinatorRig(tmp_path, rounds=3, minimum_clients=1, policy=All(1)).running() as r:
        a = await r.join("a", manual=True, released=a.released)
        for t in (1, 2, 3):
            job = await a.next_job()
            assert r.coordinator.state.table.ids == (["a"] if t < 3 else ["a", "b"])
            tally = RunTally(r.store.log(), late_events=r.store.late_events())
            if t == 2:
                assert tally.unanswered.releases_at_most(r.coordinator.state.table, BUDGET)["b"] == b.released == 7
                await r.join("b", released=b.released)
            await a.answer(t, attempt=job.attempt)
        await r.played()
        table = r.coordinator.state.table
        assert table.joined_round.tolist() == [1, 3]
        assert table.released.tolist() == [7, 8]


# -- accuracies: the best model stays in its file, and missing evaluations are made later

MANIFEST, HALF = (Manifest((TensorSpec("synthetic", (size,)),)) for size in (SIZE, SIZE // 2))


class Evaluator:
    """Rates each model with the next of `accuracies`; None: the evaluator cannot be reached."""

    def __init__(self, *accuracies: float | None) -> None:
        self._accuracies = list(accuracies)
        self._on_all = 0

    async def __call__(self, _: Vector, *, subset: bool, patient: bool) -> Sequence[Evaluation]:
        if not subset:
            self._on_all += 1
            test = Evaluation("test", False, 10, 0.5 / self._on_all, 1.0)
            return [Evaluation("validation", False, 10, 0.99, 1.0), test]
        accuracy = self._accuracies.pop(0)
        if accuracy is None:
            raise EvaluatorLost("nobody answers")
        return [Evaluation("validation", True, 10, accuracy, 1.0)]


async def evaluate(folder: Path, rounds: int, *accuracies: float | None, **changes: Any) -> tuple[RunResult, list[str]]:
    """Begin or resume the run up to round `rounds`, with an evaluation per round; returns its result and notices."""
    files = ModelFiles(folder, changes.pop("manifest", MANIFEST))
    settings: dict[str, Any] = {"evaluation_every": 1, "minimum_clients": 1, "checkpoint_every": 0} | changes
    settings |= {"evaluate": Evaluator(*accuracies), "best_model": files}
    async with federation(folder, All(1), rounds=rounds, **settings) as run, clients() as some:
        some.start("a", await run.port)
        return await run.finished(), notices(run)


def evaluated(folder: Path) -> list[tuple[int, float]]:
    with closing(Store(folder / "run.db")) as store:
        return [(t, e.accuracy) for t, e in store.evaluations() if e.subset]


def best_of(result: RunResult) -> tuple[int, float, bytes]:
    """The round, validation accuracy and values of the best model."""
    assert result.best is not None
    return result.best.round, result.best.validation_accuracy, result.best.theta.tobytes()


def kept_in(folder: Path) -> tuple[int, bytes]:
    """The round and values of the best model in its file."""
    kept = ModelFiles(folder, MANIFEST).load()
    assert kept is not None
    return kept[0], kept[1].tobytes()


async def test_the_best_model_outlives_a_restart(tmp_path: Path) -> None:
    first, _ = await evaluate(tmp_path, 3, 0.25, 0.75, 0.5)
    before = (tmp_path / "best_model.safetensors").stat()
    second, _ = await evaluate(tmp_path, 5, 0.625, 0.5)
    assert best_of(second) == best_of(first)
    assert best_of(first)[:2] == (2, 0.75)
    after = (tmp_path / "best_model.safetensors").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


async def test_an_interruption_rates_no_model_that_a_whole_run_would_not(tmp_path: Path) -> None:
    """The last model is rated for the summary only: a resumed run has the same series as an uninterrupted one."""
    settings = {"rounds": 1_000_000, "evaluation_every": 1_000_000, "minimum_clients": 1}
    async with federation(tmp_path, All(1), evaluate=Evaluator(), **settings) as run, clients() as some:
        some.start("a", await run.port)
        await run.event("round")
        signal.raise_signal(signal.SIGTERM)
        result = await run.finished()
    assert result.outcome == "interrupted"
    assert [e.accuracy for e in result.final_evaluations] == [0.99, 0.5]
    assert (evaluated(tmp_path), result.best) == ([], None)


async def test_of_equally_good_models_the_first_is_the_best_and_a_better_one_replaces_it(tmp_path: Path) -> None:
    runs = set()
    for rounds, accuracies in ((2, (0.5, 0.5)), (4, (0.25, 0.5))):
        result, said = await evaluate(tmp_path, rounds, *accuracies)
        assert (best_of(result)[0], [message for message in said if "is gone" in message]) == (1, [])
        assert (result.final_evaluations[1].accuracy, result.best_evaluations[1].accuracy) == (0.5, 0.25)
        with closing(Store(tmp_path / "run.db")) as store:
            runs.add(store.meta("run_id"))
    assert len(runs) == 1, "clients' ledgers know the run by its id"
    result, _ = await evaluate(tmp_path / "better", 2, 0.25, 0.5)
    assert result.best_evaluations == result.final_evaluations, "the last model is the best"
    result, _ = await evaluate(tmp_path / "better", 4, 0.875, 0.5)
    assert kept_in(tmp_path / "better") == (3, best_of(result)[2])


async def test_evaluations_that_are_missing_are_made_up_or_named_also_where_no_round_is_left(tmp_path: Path) -> None:
    await evaluate(tmp_path, 6, None, None, None, None, 0.5, None, checkpoint_every=2)
    assert evaluated(tmp_path) == [(5, 0.5)]
    _, said = await evaluate(tmp_path, 7, 0.25, 0.375, 0.75, 0.875, checkpoint_every=2)
    assert "not evaluated, since their models are gone: round 1, 3" in said
    assert evaluated(tmp_path) == [(2, 0.25), (4, 0.375), (5, 0.5), (6, 0.75), (7, 0.875)]
    await evaluate(tmp_path / "last", 2, 0.25, None)
    once, last = Evaluator(0.5), tmp_path / "last"
    async with federation(last, All(1), rounds=2, evaluate=once, evaluation_every=1, checkpoint_every=0) as run:
        await run.finished()
    assert evaluated(last) == [(1, 0.25), (2, 0.5)]


@pytest.mark.parametrize("manifest", [MANIFEST, HALF.with_control()])
async def test_a_crash_between_the_best_model_and_its_row_is_made_up_for(tmp_path: Path, manifest: Manifest) -> None:
    """The file is of round 2, and the log has no evaluation of round 2: it is evaluated again."""
    second, _ = await evaluate(tmp_path / "twin", 2, 0.25, 0.5)
    await evaluate(tmp_path, 4, 0.25, None, 0.5, 0.375)
    ModelFiles(tmp_path, manifest).save(2, second.theta)
    result, said = await evaluate(tmp_path, 5, 0.75, 0.5, manifest=manifest)
    assert evaluated(tmp_path) == [(1, 0.25), (2, 0.75), (3, 0.5), (4, 0.375), (5, 0.5)]
    assert best_of(result)[0] == 2
    assert not any("not evaluated" in line for line in said)


async def test_a_best_model_of_another_timeline_is_not_the_rounds(tmp_path: Path) -> None:
    """As after --back-to: the file has another model of round 2 than the log names."""
    await evaluate(tmp_path, 4, 0.25, None, 0.5, 0.375)
    files = ModelFiles(tmp_path, MANIFEST)
    kept = files.load()
    assert kept is not None
    files.save(2, kept[1])
    _, said = await evaluate(tmp_path, 5, 0.5)
    assert evaluated(tmp_path) == [(1, 0.25), (3, 0.5), (4, 0.375), (5, 0.5)]
    assert "not evaluated, since their models are gone: round 2" in said


async def test_going_back_keeps_the_best_of_the_rounds_that_stay(tmp_path: Path) -> None:
    first, _ = await evaluate(tmp_path, 2, 0.25, 0.75, checkpoint_every=2)
    await evaluate(tmp_path, 4, 0.5, 0.875, checkpoint_every=2)
    result, _ = await evaluate(tmp_path, 4, 0.5, 0.25, checkpoint_every=2, back_to=2)
    assert best_of(result) == best_of(first)
    assert best_of(first)[:2] == (2, 0.75)
    assert kept_in(tmp_path) == (2, best_of(first)[2])


async def test_a_best_model_that_is_gone_is_told_of_and_the_next_best_counts(tmp_path: Path) -> None:
    await evaluate(tmp_path, 5, 0.25, 0.75, 0.25, 0.5, 0.375)
    (tmp_path / "best_model.safetensors").unlink()
    result, said = await evaluate(tmp_path, 6, 0.25)
    assert "the best model so far, of round 2, is gone: the best of those that are left counts" in said
    assert best_of(result)[:2] == (4, 0.5)
    again, _ = await evaluate(tmp_path, 7, 0.25)
    assert best_of(again)[0] == 4


@pytest.mark.parametrize("damage", [b"", b"no model", None])
def test_a_best_model_that_is_damaged_is_none(tmp_path: Path, damage: bytes | None) -> None:
    if damage is not None:
        (tmp_path / "best_model.safetensors").write_bytes(damage)
    assert ModelFiles(tmp_path, MANIFEST).load() is None
