"""Searches of parameters that are killed or interrupted at awkward moments, and resumed."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

import optuna
import pytest
from rich.console import Console

import pausefl_tune as tuning_module
from pausefl.outcomes import RunInterrupted
from pausefl.studies.playing import OneByOne
from pausefl_proto.errors import ConfigError, PauseflError
from pausefl_tune import resume_tuning, tune_experiment
from pausefl_tune import study as study_module
from pausefl_tune.plan import Point, TuningPlan
from rigs.tuning import SMALL, FailingAt, plan

pytestmark = pytest.mark.usefixtures("quickly_written")

LEARNING = SMALL.replace('model = "synthetic"', 'model = "mlp"')


def test_a_search_that_was_killed_before_its_first_values_were_noted_still_tries_the_published_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = optuna.Study.ask

    def asked(study: optuna.Study, _: object) -> None:
        ask(study)
        raise KeyboardInterrupt

    with monkeypatch.context() as patches:
        patches.setattr(optuna.Study, "ask", asked)
        with pytest.raises(RunInterrupted):
            tune_experiment(plan(trials=2), tmp_path, Console(quiet=True))
    tuning = resume_tuning(tmp_path, Console(quiet=True))
    assert tuning.tried.trials[0].point == tuning.plan.own_point


def test_a_search_that_was_interrupted_tries_the_settings_that_it_would_have_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning_module, "Measure", lambda *_: FailingAt())
    whole = tune_experiment(plan(), tmp_path / "whole", Console(quiet=True)).tried
    assert len({repr(trial.point) for trial in whole.trials}) == len(whole.trials), "none is drawn again"
    tried, calls = study_module.tried, count(1)

    def interrupted_sometimes(*arguments: Any) -> Sequence[float] | None:
        return interrupted() if next(calls) in (1, 4) else tried(*arguments)

    monkeypatch.setattr(study_module, "tried", interrupted_sometimes)
    plays: list[Callable[..., object]] = [partial(tune_experiment, plan()), resume_tuning]
    for play in plays:
        with pytest.raises(RunInterrupted):
            play(tmp_path / "halves", Console(quiet=True))
    assert resume_tuning(tmp_path / "halves", Console(quiet=True)).tried == whole


def interrupted(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def test_real_seeds_that_were_asked_for_later_are_played_by_the_next_resume_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning_module, "Measure", lambda *_: FailingAt())
    asked = plan(source=LEARNING, search=["selection.pause.alpha=1..100"], trials=1, seeds=1, fresh_seeds=2)
    tune_experiment(asked, tmp_path, Console(quiet=True))
    with monkeypatch.context() as patches:
        patches.setattr(tuning_module, "write_tuning", interrupted)
        with pytest.raises(RunInterrupted, match=f"^interrupted; go on with: pausefl tune --resume {tmp_path}$"):
            resume_tuning(tmp_path, Console(quiet=True), real_seeds=2)
    assert resume_tuning(tmp_path, Console(quiet=True)).plan.real_clock_seeds == range(4, 6)


def test_a_trial_that_a_full_disk_ended_is_taken_up_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once such a setting was refused for good, even when the disk had room again."""
    wanted: list[Point] = []

    def full(_: TuningPlan, point: Point, *more: object) -> None:
        wanted.append(point)
        raise PauseflError("the run's log cannot be written: database or disk is full")

    with monkeypatch.context() as patches:
        patches.setattr(study_module, "tried", full)
        with pytest.raises(PauseflError, match=f"disk is full; go on with: pausefl tune --resume {tmp_path}$"):
            tune_experiment(plan(trials=3), tmp_path, Console(quiet=True))
    found = resume_tuning(tmp_path, Console(quiet=True)).tried
    assert len(wanted) == 1, "the others would have met the same disk"
    assert found.trials[0].point == wanted[0]
    assert (len(found.trials) + found.pruned, found.refused) == (3, [])


def test_a_cluster_that_takes_no_runs_refuses_no_setting(tmp_path: Path) -> None:
    class Refusing(OneByOne):
        def play(self, *_: object) -> NoReturn:
            raise ConfigError("sbatch refuses the job")

    asked, player = plan(source=LEARNING, by="run"), Refusing(lambda _: nullcontext(print))
    with pytest.raises(PauseflError, match=f"^sbatch refuses the job; go on with: pausefl tune --resume {tmp_path}$"):
        tune_experiment(asked, tmp_path, Console(quiet=True), player)


@pytest.mark.parametrize("text", ["no database", ""])
def test_a_study_that_cannot_be_read_is_one_line(text: str, tmp_path: Path) -> None:
    tune_experiment(plan(trials=1), tmp_path, Console(quiet=True))
    study = tmp_path / study_module.STUDY
    study.write_text(text or study.name * 100)
    with pytest.raises(PauseflError, match=f"^{study}: cannot be used .* go on with: pausefl tune") as error:
        resume_tuning(tmp_path, Console(quiet=True))
    assert "\n" not in str(error.value)
