"""Searches of parameters that were killed or interrupted at awkward moments, and go on."""

from pathlib import Path

import pytest
from rich.console import Console

from pausefl.campaigns.tuning import resume_tuning, tune_experiment
from pausefl.campaigns.tuning import study as study_module
from pausefl.campaigns.tuning.space import SearchChoices, published_point
from pausefl.exit_status import RunInterrupted
from test_tuning import plan


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
