"""Runs of a campaign that are played side by side: as if alone, and ended together."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import pausefl
from pausefl.campaigns import side_by_side
from pausefl.campaigns.campaign import CampaignInterrupted, OneByOne, Planned, is_finished
from pausefl.campaigns.side_by_side import SideBySide
from pausefl.campaigns.sweep import run_sweep
from pausefl.cli import main
from pausefl.config.experiment import Experiment
from pausefl.config.loading import load_experiment
from pausefl.config.toml_source import read_source
from pausefl.runtime.fleet import SILENT
from pausefl_proto.errors import PauseflError
from rigs.command import rounds_in
from rigs.waiting import wait_for

SMALL: dict[str, Sequence[Any]] = {
    "experiment.clock": ["virtual"],
    "experiment.rounds": [3],
    "clients.count": [4],
    "selection.m": [1, 2],
    "workload.model": ["synthetic"],
    "privacy.enabled": [False],
}


def experiment(*overrides: str) -> Experiment:
    settings = ["experiment.clock=virtual", "experiment.rounds=3", "clients.count=4", "selection.m=2"]
    return load_experiment("demo", [*settings, "workload.model=synthetic", "privacy.enabled=false", *overrides])


def test_runs_side_by_side_are_those_played_alone(tmp_path: Path) -> None:
    said: list[str] = []
    together = run_sweep(read_source("demo"), SMALL, 1, tmp_path / "two", SideBySide(2, said.append))
    assert sorted(line.partition(":")[0] for line in said) == ["m=1-seed1", "m=2-seed1"]
    assert said[0].endswith("(1 of 2, about 1 min left)")
    assert said[-1].endswith("(2 of 2)")
    alone = run_sweep(read_source("demo"), SMALL, 1, tmp_path / "one", OneByOne(lambda _: nullcontext(SILENT)))
    figures = ("seed", "selection.m", "total_latency_s", "rounds")
    assert [[row[key] for key in figures] for row in together.rows] == [
        [row[key] for key in figures] for row in alone.rows
    ]


def test_a_run_that_fails_is_told_and_no_other_is_begun(tmp_path: Path) -> None:
    broken = experiment("workload.model=nowhere:model", "workload.dataset=digits")
    runs = [Planned("broken", broken), Planned("sound", experiment())]
    with pytest.raises(PauseflError, match="nowhere"):
        SideBySide(1, pytest.fail).play(runs, tmp_path, "")
    assert not (tmp_path / "sound").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--jobs", "2"], '--jobs 2: needs experiment.clock = "virtual"'),
        (["--jobs", "0", "--virtual"], "--jobs 0: must be at least 1"),
    ],
)
def test_what_cannot_be_played_side_by_side_is_one_line_and_leaves_nothing(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["compare", "demo", "--policies", "random", "--run-dir", str(tmp_path / "c"), *words])
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith(f"pausefl: {said}")
    assert err.count("\n") == 1
    assert not (tmp_path / "c").exists()


@pytest.mark.end_to_end
def test_an_interrupt_ends_all_and_says_how_to_go_on(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    words = ["compare", "demo", "--policies", "random,fastest", "--jobs", "2", "--run-dir", str(folder)]
    # Rounds without end: no run can finish before the signal.
    words += ["--virtual", "--set", "experiment.rounds=1000000", "--set", "workload.model=synthetic"]
    command = [sys.executable, "-m", "pausefl", *words]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        run_dirs = [folder / f"{policy}-seed1" for policy in ("random", "fastest")]
        wait_for(lambda: all(rounds_in(run_dir) for run_dir in run_dirs), "both runs", running=process)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to every process
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"interrupted after 0 of 2 runs were finished; go on with: pausefl compare --resume {folder} --jobs 2" in err
    assert not any(is_finished(run_dir) for run_dir in run_dirs)
    assert all((run_dir / "summary.json").exists() for run_dir in run_dirs)  # each ended in order


def test_an_interrupt_while_a_process_is_started_lets_no_run_be_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_worker = side_by_side._new_worker

    def interrupted_worker() -> side_by_side._Worker:
        worker = new_worker()
        signal.raise_signal(signal.SIGINT)
        return worker

    monkeypatch.setattr(side_by_side, "_new_worker", interrupted_worker)
    with pytest.raises(CampaignInterrupted, match="interrupted after 0 of 1 runs"):
        SideBySide(1, pytest.fail).play([Planned("only", experiment())], tmp_path, "")
    assert not is_finished(tmp_path / "only")


def test_the_library_plays_side_by_side(tmp_path: Path) -> None:
    found = pausefl.compare(experiment(), ["random", "fastest"], folder=tmp_path / "c", progress=False, jobs=2)
    assert list(found.runs) == ["random", "fastest"]


def test_runs_share_as_many_processes_as_there_are_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[side_by_side._Worker] = []
    new_worker = side_by_side._new_worker

    def noted_worker() -> side_by_side._Worker:
        made.append(new_worker())
        return made[-1]

    monkeypatch.setattr(side_by_side, "_new_worker", noted_worker)
    runs = [Planned(f"{number}", experiment(f"experiment.seed={number}")) for number in range(3)]
    assert len(SideBySide(1, lambda _: None).play(runs, tmp_path, "")) == 3
    assert [worker.process.exitcode for worker in made] == [0]


def test_a_killed_process_is_told_and_ends_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new_worker = side_by_side._new_worker
    made: list[side_by_side._Worker] = []

    def killed_worker() -> side_by_side._Worker:
        made.append(new_worker())
        if len(made) == 1:
            made[0].process.kill()
        return made[-1]

    monkeypatch.setattr(side_by_side, "_new_worker", killed_worker)
    runs = [Planned("first", experiment()), Planned("second", experiment("experiment.seed=2"))]
    with pytest.raises(PauseflError, match="first: its process ended with status -9"):
        SideBySide(2, lambda _: None).play(runs, tmp_path, "")
    assert is_finished(tmp_path / "second")
