"""Searches of parameters that were killed or interrupted at awkward moments, and go on."""

from contextlib import nullcontext
from pathlib import Path

import pytest
from rich.console import Console

from pausefl.campaigns import campaign
from pausefl.campaigns import tuning as tuning_module
from pausefl.campaigns.tuning import resume_tuning, tune_experiment
from pausefl.campaigns.tuning import study as study_module
from pausefl.campaigns.tuning.fresh import FrontPoint
from pausefl.campaigns.tuning.measure import measure_by_run
from pausefl.campaigns.tuning.plan import TuningPlan
from pausefl.campaigns.tuning.space import Point, SearchChoices, published_point
from pausefl.exit_status import RunInterrupted
from pausefl.runtime.fleet import SILENT
from pausefl_proto.errors import PauseflError
from test_tuning import SMALL, plan


@pytest.mark.timeout(60)
def test_a_search_that_was_killed_while_its_journal_was_locked_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Optuna's lock is a link to the journal; by a relative path it leads nowhere, and was waited for for ever."""
    monkeypatch.chdir(tmp_path)
    folder = Path("runs/search")
    folder.mkdir(parents=True)
    journal = folder / study_module.STUDY
    Path(f"{journal}.lock").symlink_to(journal)
    tuning = tune_experiment(plan(trials=2), folder, Console(quiet=True))
    assert len(tuning.tried.trials) + tuning.tried.pruned == 2


def test_a_search_that_was_killed_before_its_first_values_were_noted_still_tries_the_published_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patches:
        patches.setattr(SearchChoices, "suggest", interrupted)
        with pytest.raises(RunInterrupted):
            tune_experiment(plan(trials=2), tmp_path, Console(quiet=True))
    tuning = resume_tuning(tmp_path, Console(quiet=True))
    assert tuning.tried.trials[0].point == published_point(tuning.plan.experiment, tuning.plan.space)


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_real_seeds_that_were_asked_for_later_are_played_by_the_next_resume_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learning = SMALL.replace('model = "synthetic"', 'model = "mlp"')
    asked = plan(source=learning, search=["selection.pause.alpha=1..100"], trials=1, seeds=1, fresh_seeds=2)
    tune_experiment(asked, tmp_path, Console(quiet=True))
    with monkeypatch.context() as patches:
        patches.setattr(tuning_module, "on_real_clock", interrupted)
        with pytest.raises(RunInterrupted, match=f"^interrupted; go on with: pausefl tune --resume {tmp_path}$"):
            resume_tuning(tmp_path, Console(quiet=True), real_seeds=2)
    seeds: list[range] = []

    def noted(plan: TuningPlan, *_: object) -> list[FrontPoint]:
        seeds.append(plan.real_clock_seeds)
        return []

    monkeypatch.setattr(tuning_module, "on_real_clock", noted)
    resume_tuning(tmp_path, Console(quiet=True))
    assert seeds == [range(4, 6)], "as the line said that the interrupted search ended with"


def test_a_setting_whose_run_could_not_be_played_is_told_without_a_command_that_there_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise PauseflError("the server ended unexpectedly")

    monkeypatch.setattr(campaign, "run_experiment", failing)
    asked = plan(source=SMALL.replace('model = "synthetic"', 'model = "mlp"'), by="run")
    measure = measure_by_run(asked, tmp_path, lambda _: nullcontext(SILENT))
    with pytest.raises(PauseflError, match=r"^runs/[0-9a-f]+-seed1: the server ended unexpectedly$"):
        measure({}, 1)


def test_a_trial_that_a_full_disk_ended_is_taken_up_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a setting was refused for good, also once there was room on the disk."""
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


def test_a_front_that_a_full_disk_keeps_from_fresh_seeds_is_compared_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise PauseflError("the run's log cannot be written: database or disk is full")

    with monkeypatch.context() as patches:
        patches.setattr(tuning_module, "compared", full)
        with pytest.raises(PauseflError, match=f"disk is full; go on with: pausefl tune --resume {tmp_path}$"):
            tune_experiment(plan(trials=2), tmp_path, Console(quiet=True))
    assert resume_tuning(tmp_path, Console(quiet=True)).front[-1].name == "published"
