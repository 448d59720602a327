"""Observers get a run's events; an observer that fails or is slow does not disturb the run."""

import asyncio
import re
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import pausefl
from pausefl.cli import main
from pausefl.runtime.observers import Observed, Observer, load_observers, observed
from pausefl.runtime.observers.base import figures
from pausefl_process.events import ModelEvaluated, Notice, ProgressEvent, RollCall, from_line
from rigs.command import played, summary_of, synthetic
from rigs.refusals import refused
from rigs.waiting import wait_for

SETTINGS = {"experiment": {"rounds": 3}}
MODULE = """
import pausefl


class Noting(pausefl.Observer):
    def begin(self, run_dir, settings):
        self.path = run_dir / "noted.txt"

    def on_event(self, event):
        with self.path.open("a") as file:
            print(event.kind, file=file)


class Failing(pausefl.Observer):
    def on_event(self, event):
        raise LookupError("no such thing")
"""


class Recorder(Observer):
    """An observer that keeps all it gets."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def begin(self, run_dir: Path, settings: Mapping[str, Mapping[str, Any]]) -> None:
        self.told.append((run_dir.name, settings["experiment"]["rounds"]))

    def on_event(self, event: ProgressEvent) -> None:
        self.told.append(event)

    def end(self) -> None:
        self.told.append("end")


class Stuck(Recorder):
    """An observer that never returns from its first event."""

    def on_event(self, event: ProgressEvent) -> None:
        del event
        threading.Event().wait()


class Failing(Recorder):
    """An observer that fails at its second event."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self._error = error

    def on_event(self, event: ProgressEvent) -> None:
        super().on_event(event)
        if isinstance(event, RollCall) and event.round == 2:
            raise self._error


class Homeless(Observer):
    def begin(self, run_dir: Path, settings: Mapping[str, Mapping[str, Any]]) -> None:
        raise ValueError(f"nowhere in {run_dir.name} for {settings['experiment']['rounds']} rounds")


class Deaf(Observer):
    def begin(self, run_dir: Path) -> None:  # type: ignore[override] # on purpose
        pass


def unmakeable() -> Observer:
    raise LookupError("no such thing")


def test_every_observer_is_told_everything_in_order(tmp_path: Path) -> None:
    shown: list[ProgressEvent] = []
    both = Recorder(), Recorder()
    with Observed(shown.append, both, tmp_path, SETTINGS) as seen:
        for number in range(3):
            seen.show(RollCall(number))
    events = [RollCall(number) for number in range(3)]
    assert shown == events
    assert [each.told for each in both] == [[(tmp_path.name, 3), *events, "end"]] * 2


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("no second\nround"), "ValueError: no second round"),
        (SystemExit(2), "SystemExit: 2"),  # raised freely, it would end the process
        (asyncio.CancelledError(), "CancelledError"),  # an observer's own event loop may raise it
    ],
)
def test_one_that_fails_is_told_no_more_and_complained_of_once(error: BaseException, said: str, tmp_path: Path) -> None:
    shown: list[ProgressEvent] = []
    failing, other = Failing(error), Recorder()
    with Observed(shown.append, [failing, other], tmp_path, SETTINGS) as seen:
        for number in range(1, 5):
            seen.show(RollCall(number))
    assert failing.told[-1] == RollCall(2)
    assert other.told[-2:] == [RollCall(4), "end"]
    (notice,) = (event.message for event in shown if isinstance(event, Notice))
    assert re.fullmatch(rf"observer Failing failed .* nothing more: {said} \(.*test_observers\.py:\d+\)", notice)


def test_one_that_takes_for_ever_holds_up_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observed, "_END_WITHIN_S", 0.5)
    shown: list[ProgressEvent] = []
    stuck, other = Stuck(), Recorder()
    with Observed(shown.append, [stuck, other], tmp_path, SETTINGS) as seen:
        for number in range(1000):
            seen.show(RollCall(number))
        assert len(shown) == 1000
        wait_for(lambda: other.told[-1:] == [RollCall(999)], "the other observer to hear of all")
    assert other.told[-1] == "end"
    assert shown[1000:] == [Notice("observer Stuck is not done 0.5 s after the end, and is left alone")]


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("tensorbord", 'experiment.observers = "tensorbord": did you mean tensorboard?'),
        ("nothing", 'must be one of mlflow, tensorboard, trackio, wandb, or "package.module:name"'),
        ("no_such_module:Noting", "cannot be imported (ModuleNotFoundError: No module named 'no_such_module')"),
        ("test_observers:unmakeable", '"test_observers:unmakeable": cannot be made: LookupError: no such thing ('),
        ("test_observers:Deaf", '"test_observers:Deaf": its `begin` must take (run_dir, settings);'),
        ("builtins:dict", 'experiment.observers = "builtins:dict": makes no pausefl.Observer'),
    ],
)
def test_what_is_no_observer_is_refused_in_one_line(name: str, complaint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "test_observers", sys.modules[__name__])
    with refused(complaint):
        load_observers([name])


def test_an_observer_whose_package_is_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pausefl.extras.find_spec", lambda _: None)
    with pytest.raises(
        pausefl.ConfigError, match=r'^mlflow, pausefl_trackers: not installed; pip install "pausefl\[mlflow\]";'
    ):
        load_observers(["mlflow"])


@pytest.mark.parametrize(("subset", "name"), [(True, "R² _mean_/test"), (False, "R² _mean_/test-all")])
def test_a_regression_is_not_shown_as_a_classification_nor_all_data_as_a_part(subset: bool, name: str) -> None:
    assert figures(ModelEvaluated(3, "test", 0.75, None, "R² (mean)", subset)) == {name: (3, 0.75)}


@pytest.mark.slow
def test_a_run_has_the_observers_named_and_prints_its_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "watching.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    observers = 'experiment.observers=["watching:Noting", "watching:Failing"]'
    done = played("run", synthetic(tmp_path), "--run-dir", tmp_path / "run", "--json", "--set", observers)
    events = [from_line(line) for line in done.stdout.splitlines()]
    shown = [event.kind for event in events if not isinstance(event, Notice)]
    assert shown.pop() == "preparing"  # the report is drawn after the run and its observers have ended
    assert [kind for kind in (tmp_path / "run/noted.txt").read_text().split() if kind != "notice"] == shown
    assert {"metrics", "waiting", "round", "finished"} <= set(shown)
    complaints = [e.message for e in events if isinstance(e, Notice) and "observer" in e.message]
    place = f"{tmp_path / 'watching.py'}:16"
    assert complaints == [f"observer Failing failed and is told nothing more: LookupError: no such thing ({place})"]
    assert "report:" in done.stderr
    assert summary_of(tmp_path / "run")["outcome"] == "completed"


@pytest.mark.usefixtures("quickly_written")
@pytest.mark.end_to_end
def test_the_log_of_a_run_that_shows_nothing_tells_of_an_observer_that_failed(tmp_path: Path) -> None:
    """Once only the display showed it, and runs that are played several at a time have none."""
    experiment = pausefl.load(synthetic(tmp_path, rounds=3), {"experiment.clock": "virtual"})
    pausefl.run(experiment, tmp_path / "run", progress=False, observers=[Homeless()])
    log = (tmp_path / "run/server.log").read_text("utf-8")
    assert "WARNING observer Homeless failed and is told nothing more: ValueError: nowhere in run for 3 rounds (" in log


@pytest.mark.end_to_end
@pytest.mark.usefixtures("quickly_written")
def test_a_quiet_run_prints_its_result_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["run", str(synthetic(tmp_path, rounds=3)), "--run-dir", str(tmp_path / "run"), "--quiet"])
    said = capsys.readouterr()
    assert "round 1/3" not in said.out
    assert "all rounds done" in said.out
    assert "live page" not in said.out + said.err
