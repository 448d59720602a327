"""A restart forgets no accuracy: the best model is kept in its file, and evaluations that are missing are made up."""

import signal
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pausefl.runtime.server.model_files import ModelFiles
from pausefl_proto.errors import EvaluatorLost
from pausefl_proto.wire import Manifest, TensorSpec, Vector
from pausefl_server.records import Evaluation
from pausefl_server.selection.policies.everyone import All
from pausefl_server.service import RunResult
from pausefl_server.storage.store import Store
from rigs.federation import SIZE, clients, federation

MANIFEST = Manifest((TensorSpec("synthetic", (SIZE,)),))


class Evaluator:
    """Gives each model it is asked about the next accuracy; None: it cannot be reached."""

    def __init__(self, *accuracies: float | None) -> None:
        self._accuracies = list(accuracies)

    async def __call__(self, _: Vector, *, subset: bool, patient: bool) -> Sequence[Evaluation]:  # noqa: ARG002
        if not subset:
            return [Evaluation("validation", False, 10, 0.99, 1.0), Evaluation("test", False, 10, 0.5, 1.0)]
        accuracy = self._accuracies.pop(0)
        if accuracy is None:
            raise EvaluatorLost("nobody answers")
        return [Evaluation("validation", True, 10, accuracy, 1.0)]


async def play(folder: Path, rounds: int, *accuracies: float | None, **changes: Any) -> tuple[RunResult, list[str]]:
    """Begin or go on with the run until it has so many rounds, all evaluated; its result and what it said."""
    files = ModelFiles(folder, MANIFEST)
    settings: dict[str, Any] = {"evaluation_every": 1, "minimum_clients": 1, "checkpoint_every": 0} | changes
    settings |= {"evaluate": Evaluator(*accuracies), "best_model": files}
    async with federation(folder, All(1), rounds=rounds, **settings) as run, clients() as some:
        some.start("a", await run.port)
        result = await run.finished()
    said = [run.events.get_nowait() for _ in range(run.events.qsize())]
    return result, [event["message"] for event in said if event["kind"] == "notice"]


def evaluated(folder: Path) -> list[tuple[int, float]]:
    with closing(Store(folder / "run.db")) as store:
        return [(t, e.accuracy) for t, e in store.evaluations() if e.subset]


def best_of(result: RunResult) -> tuple[int, float, bytes]:
    """The round, accuracy and values of the best model."""
    assert result.best is not None
    return result.best.round, result.best.validation_accuracy, result.best.theta.tobytes()


def kept_in(folder: Path) -> tuple[int, bytes]:
    """The round and values of the best model as its file has it."""
    kept = ModelFiles(folder, MANIFEST).load()
    assert kept is not None
    return kept[0], kept[1].tobytes()


async def test_the_best_model_outlives_a_restart(tmp_path: Path) -> None:
    first, _ = await play(tmp_path, 3, 0.25, 0.75, 0.5)
    before = (tmp_path / "best_model.safetensors").stat()
    second, _ = await play(tmp_path, 5, 0.625, 0.5)
    assert best_of(second) == best_of(first)
    assert best_of(first)[:2] == (2, 0.75)
    after = (tmp_path / "best_model.safetensors").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


async def test_an_interruption_rates_no_model_that_a_whole_run_would_not(tmp_path: Path) -> None:
    """The last model so far is evaluated for the summary; the resumed run has the series of one left alone."""
    settings = {"rounds": 1_000_000, "evaluation_every": 1_000_000, "minimum_clients": 1}
    async with federation(tmp_path, All(1), evaluate=Evaluator(), **settings) as run, clients() as some:
        some.start("a", await run.port)
        await run.event("round")
        signal.raise_signal(signal.SIGTERM)
        result = await run.finished()
    assert result.outcome == "interrupted"
    assert [e.accuracy for e in result.final_evaluations] == [0.99, 0.5]
    assert (evaluated(tmp_path), result.best) == ([], None)


async def test_of_equally_good_models_the_first_is_the_best_also_after_a_restart(tmp_path: Path) -> None:
    for rounds, accuracies in ((2, (0.5, 0.5)), (4, (0.25, 0.5))):
        result, said = await play(tmp_path, rounds, *accuracies)
        assert (best_of(result)[0], [message for message in said if "is gone" in message]) == (1, [])


async def test_a_better_model_after_a_restart_replaces_it(tmp_path: Path) -> None:
    await play(tmp_path, 2, 0.25, 0.5)
    result, _ = await play(tmp_path, 4, 0.875, 0.5)
    assert kept_in(tmp_path) == (3, best_of(result)[2])


async def test_evaluations_that_are_missing_are_made_up_or_named(tmp_path: Path) -> None:
    await play(tmp_path, 6, None, None, None, None, 0.5, None, checkpoint_every=2)
    assert evaluated(tmp_path) == [(5, 0.5)]
    _, said = await play(tmp_path, 7, 0.25, 0.375, 0.75, 0.875, checkpoint_every=2)
    assert "not evaluated, since their models are gone: round 1, 3" in said
    assert evaluated(tmp_path) == [(2, 0.25), (4, 0.375), (5, 0.5), (6, 0.75), (7, 0.875)]


async def test_the_last_model_is_made_up_for_once_where_no_round_is_left(tmp_path: Path) -> None:
    await play(tmp_path, 2, 0.25, None)
    once = Evaluator(0.5)
    async with federation(tmp_path, All(1), rounds=2, evaluate=once, evaluation_every=1, checkpoint_every=0) as run:
        await run.finished()
    assert evaluated(tmp_path) == [(1, 0.25), (2, 0.5)]


async def test_a_crash_between_the_best_model_and_its_row_is_made_up_for(tmp_path: Path) -> None:
    """The file is of a round that the log does not know to be evaluated: it is evaluated again from there."""
    second, _ = await play(tmp_path / "twin", 2, 0.25, 0.5)
    await play(tmp_path, 4, 0.25, None, 0.5, 0.375)
    ModelFiles(tmp_path, MANIFEST).save(2, second.theta)
    result, said = await play(tmp_path, 5, 0.75, 0.5)
    assert evaluated(tmp_path) == [(1, 0.25), (2, 0.75), (3, 0.5), (4, 0.375), (5, 0.5)]
    assert best_of(result)[0] == 2
    assert not any("not evaluated" in line for line in said)


async def test_a_best_model_of_another_timeline_is_not_the_rounds(tmp_path: Path) -> None:
    """As after --back-to: the file holds a model of round 2, and the log names another one."""
    await play(tmp_path, 4, 0.25, None, 0.5, 0.375)
    files = ModelFiles(tmp_path, MANIFEST)
    kept = files.load()
    assert kept is not None
    files.save(2, kept[1])
    _, said = await play(tmp_path, 5, 0.5)
    assert evaluated(tmp_path) == [(1, 0.25), (3, 0.5), (4, 0.375), (5, 0.5)]
    assert "not evaluated, since their models are gone: round 2" in said


async def test_going_back_keeps_the_best_of_the_rounds_that_stay(tmp_path: Path) -> None:
    first, _ = await play(tmp_path, 2, 0.25, 0.75, checkpoint_every=2)
    await play(tmp_path, 4, 0.5, 0.875, checkpoint_every=2)
    result, _ = await play(tmp_path, 4, 0.5, 0.25, checkpoint_every=2, back_to=2)
    assert best_of(result) == best_of(first)
    assert best_of(first)[:2] == (2, 0.75)
    assert kept_in(tmp_path) == (2, best_of(first)[2])


async def test_a_best_model_that_is_gone_is_told_of_and_the_next_best_counts(tmp_path: Path) -> None:
    await play(tmp_path, 5, 0.25, 0.75, 0.25, 0.5, 0.375)
    (tmp_path / "best_model.safetensors").unlink()
    result, said = await play(tmp_path, 6, 0.25)
    assert "the best model so far, of round 2, is gone: the best of those that are left counts" in said
    assert best_of(result)[:2] == (4, 0.5)
    again, _ = await play(tmp_path, 7, 0.25)
    assert best_of(again)[0] == 4


@pytest.mark.parametrize("damage", [b"", b"no model", None])
def test_a_best_model_that_is_damaged_is_none(tmp_path: Path, damage: bytes | None) -> None:
    if damage is not None:
        (tmp_path / "best_model.safetensors").write_bytes(damage)
    assert ModelFiles(tmp_path, MANIFEST).load() is None
