"""A campaign's runs as jobs of an executor: results as if played alone, repeats of lost runs, and their common end."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from multiprocessing import forkserver
from pathlib import Path
from threading import Event
from typing import Any

import psutil
import pytest

import pausefl
from pausefl.experiment.experiment import Experiment
from pausefl.outcomes import RunInterrupted
from pausefl.runtime.run import run_experiment
from pausefl.runtime.run_dir import CAMPAIGN_PLAN, SHARED_STEPS
from pausefl.studies.campaign import CampaignInterrupted, Plan, Planned, begin, is_finished
from pausefl.studies.executors import player_on, side_by_side
from pausefl.studies.job import Job, on_own_disk
from pausefl.studies.playing import OneByOne, OnExecutor
from pausefl.studies.sweep import _LONGEST_NAME, resume_sweep, run_sweep
from pausefl.studies.time_left import in_words, time_left
from pausefl_process.ending import signals_to
from pausefl_proto.errors import ConfigError, PauseflError
from rigs.command import PAUSEFL, rounds_in
from rigs.experiments import small
from rigs.refusals import complaint, refused
from rigs.waiting import wait_for

pytestmark = pytest.mark.usefixtures("quickly_written")

GRID: dict[str, Sequence[Any]] = {"selection.m": [1, 2]}
ALONE = OneByOne(lambda _: nullcontext(lambda _: None))
FIGURES = ("seed", "selection.m", "total_latency_s", "rounds")


def experiment(rounds: int = 3, **workload: str) -> Experiment:
    of_workload = {f"workload.{key}": value for key, value in workload.items()}
    return small({"privacy.enabled": False, "experiment.rounds": rounds, **of_workload})


@contextmanager
def dask_workers() -> Iterator[Executor]:
    """Dask with two worker processes."""
    from distributed import LocalCluster, default_client

    with LocalCluster(2, threads_per_worker=1, dashboard_address=None) as cluster:  # type: ignore[no-untyped-call]  # untyped there
        on = f"dask={cluster.scheduler_address}"
        player = player_on(on, [own := "allow-other-workers=false"], 1, lambda _: nullcontext(print), print)
        assert isinstance(player, OnExecutor)
        assert (player.options, player.is_elsewhere) == (["--on", on, "--on-option", own], True)
        with default_client():  # type: ignore[no-untyped-call]  # untyped there
            with player.executor(Path(), False) as executor:  # a search opens it for each trial
                assert executor.submit(abs, -1).result() == 1
            with player.executor(Path(), False) as executor:
                yield executor


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")  # Dask's own
@pytest.mark.parametrize("opened", [partial(ThreadPoolExecutor, 2), partial(ProcessPoolExecutor, 2), dask_workers])
def test_runs_of_any_executor_are_those_played_alone(opened: Callable[[], Any], tmp_path: Path) -> None:
    with opened() as executor:
        together = pausefl.sweep(experiment(), GRID, folder=tmp_path / "two", progress=False, executor=executor)
    alone = run_sweep(experiment().to_toml(), GRID, 1, tmp_path / "one", ALONE)
    of_one, of_two = ([[row[key] for key in FIGURES] for row in played.rows] for played in (alone, together))
    assert of_one == of_two
    assert {path.name for path in (tmp_path / "two").iterdir()} == {path.name for path in (tmp_path / "one").iterdir()}


def test_each_run_is_told_with_how_many_are_left(tmp_path: Path) -> None:
    said: list[str] = []
    run_sweep(experiment().to_toml(), GRID, 1, tmp_path, side_by_side(2, said.append))
    first, second, _ = said  # the third message is about the figures
    assert sorted(line.partition(":")[0] for line in (first, second)) == ["m=1-seed1", "m=2-seed1"]
    assert re.search(r"\(1 of 2, about \d+ (s|min) left\)$", first)
    assert second.endswith("(2 of 2)")
    shutil.rmtree(tmp_path / "m=2-seed1")
    resume_sweep(tmp_path, side_by_side(2, said.append))
    assert said[3].endswith("(2 of 2)"), "one was finished before"
    assert not list(tmp_path.glob("*/report.html")), "drawn when it is asked for"


@pytest.mark.parametrize("player_of", [partial(side_by_side, 1), lambda say: replace(ALONE, say=say)])
def test_a_run_that_fails_is_told_and_keeps_no_other_from_being_played(player_of: Any, tmp_path: Path) -> None:
    said: list[str] = []
    broken = experiment(model="nowhere:model", dataset="digits")
    runs = [Planned("broken", broken), Planned("sound", experiment())]
    missing = player_of(said.append).play(runs, tmp_path)
    assert list(missing) == ["broken"]
    assert "nowhere" in str(missing["broken"])
    assert said[0].startswith(f"broken: {missing['broken']}")
    assert is_finished(tmp_path / "sound")


def test_an_executor_that_is_lost_is_told_with_the_way_on(tmp_path: Path) -> None:
    (lost := ThreadPoolExecutor(1)).shutdown()
    gone = "RuntimeError: cannot schedule new futures after shutdown"
    with refused(f"alpha=1e+30-seed1: its executor takes no more jobs ({gone}); go on", PauseflError):
        pausefl.sweep(experiment(), {"selection.pause.alpha": [1e30, 1e-30]}, folder=tmp_path, executor=lost)
    assert [path.name for path in tmp_path.iterdir()] == [CAMPAIGN_PLAN], "nothing to tabulate or to draw"


def test_lost_jobs_are_handed_in_again_a_few_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(*of: Any) -> Executor:
        asked.append(of)
        return ThreadPoolExecutor(1)

    said, asked = list[str](), list[Any]()
    player = OnExecutor(opened, said.append, has_whole_nodes=True)
    play = partial(player.play, [Planned("run", experiment().replace({"experiment.clock": "real"}))], tmp_path)
    monkeypatch.setattr(Job, "__call__", lambda *_: Path("/nowhere").stat())
    assert str(play()["run"]).endswith("'/nowhere') (4 times)")
    assert [line.endswith("; it goes on in another job") for line in said] == [True, True, True, False]
    assert (said[-1][-9:], asked) == (" (1 of 1)", [(tmp_path, True)]), "on the real clock: machines of their own"
    monkeypatch.setattr(Job, "__call__", lambda *_: os.nothing)  # type: ignore[attr-defined]  # on purpose
    with refused("the executor's machines cannot play it: have they this pausefl? (AttributeError: "):
        play()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--jobs", "2"], '--jobs 2: needs experiment.clock = "virtual"'),
        (["--jobs", "0", "--virtual"], "--jobs 0: must be at least 1"),
        *((["--on", on], f"--on {on}: must be local, slurm or dask") for on in ("elsewhere", "local=2", "dask=")),
        (["--on", "slurm", "--virtual"], "--on slurm: there is no sbatch here"),
        (["--on", "dask=127.0.0.1:1", "--virtual"], "--on dask=127.0.0.1:1: no Dask scheduler answers there"),
        (["--on", "dask=127.0.0.1:1", "--jobs", "2"], "--jobs 2: how many runs are played at a time, --on dask="),
        (["--on-option", "mem=1"], "--on-option mem=1: goes with --on slurm or --on dask=ADDRESS"),
        (["--on", "slurm", "--on-option", "mem"], "--on-option mem: must be KEY=VALUE"),
    ],
)
def test_what_cannot_be_played_so_is_one_line_and_leaves_nothing(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUBMITIT_LOG_LEVEL", "NOCONFIG")  # else its import ends the handlers of others
    (tmp_path / "bin/sbatch").parent.mkdir()
    if "mem" in words:
        (tmp_path / "bin/sbatch").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr("pausefl.studies.executors._ANSWERS_WITHIN_S", 0.5)
    arguments = ("compare", "demo", "--policies", "random", "--run-dir", tmp_path / "c", *words)
    assert complaint(capsys, *arguments).startswith(said)
    assert not (tmp_path / "c").exists()


class Elsewhere(Executor):
    """Stands for another machine: the player cannot tell. `changes` are set on the job on its way."""

    def __init__(self, **changes: object) -> None:
        self._changes = changes

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        for name, value in self._changes.items():
            object.__setattr__(fn, name, value)
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"version": "0.1"}, "the campaign is of 0.1"),
        ({"folder": Path("/nowhere")}, r"^/nowhere: is not there on .*; choose a folder that is shared"),
    ],
)
def test_a_machine_that_cannot_play_is_told_at_first(changes: dict[str, object], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        pausefl.sweep(experiment(), GRID, folder=tmp_path, progress=False, executor=Elsewhere(**changes))
    assert [path.name for path in tmp_path.iterdir()] == ["campaign.json"]


def test_an_interrupted_run_elsewhere_comes_back_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(tmp_path, Plan("sweep", "", {}))
    play, places = run_experiment, list[Path]()

    def interrupted_once(experiment: Experiment, run_dir: Path, *more: Any, **options: Any) -> dict[str, Any]:
        places.append(run_dir.parent)
        if len(places) == 2:
            assert rounds_in(run_dir), "what the first job has brought back"
            return play(experiment, run_dir, *more, **options)
        with ThreadPoolExecutor(1) as beside:
            beside.submit(wait_for, lambda: rounds_in(run_dir), "rounds").add_done_callback(lambda _: stop.set())
            return play(experiment, run_dir, *more, **{**options, "stop": stop})

    monkeypatch.setattr("pausefl.studies.job.run_experiment", interrupted_once)
    stop, said = Event(), list[str]()
    player = OnExecutor(lambda *_: nullcontext(Elsewhere()), said.append, is_elsewhere=True)
    assert not player.play([Planned("run", experiment(rounds=400))], tmp_path)
    assert said == ["run: interrupted; it goes on in another job", "run: completed (1 of 1)"]
    assert len(places) == 2
    assert not any(place.exists() or place == tmp_path for place in places)
    assert {path.name for path in tmp_path.iterdir()} == {"campaign.json", "run"}
    assert pausefl.open(tmp_path / "run").summary["rounds"] == 400


def test_no_signal_kill_or_disk_loses_a_run_brought_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(tmp_path, Plan("sweep", "", {}))
    rename = Path.rename

    def interrupted(_: Experiment, run_dir: Path, *__: Any, **___: Any) -> dict[str, Any]:
        run_dir.mkdir(exist_ok=True)
        (run_dir / "played").touch()
        raise KeyboardInterrupt

    def impatient(path: Path, to: Path) -> Path:
        renamed = rename(path, to)
        for number in (signal.SIGINT, signal.SIGUSR2):
            signal.raise_signal(number)
        return renamed

    monkeypatch.setattr("pausefl.studies.job.run_experiment", interrupted)
    (tmp_path / "run").mkdir()  # an earlier job has brought it back
    with monkeypatch.context() as patched, signals_to(lambda *_: sys.exit(-1), signal.SIGUSR2):  # as submitit does
        patched.setattr(Path, "rename", impatient)
        outcome = Job(experiment().to_toml(), tmp_path, "run", is_elsewhere=True)()
    assert isinstance(outcome, RunInterrupted)
    (tmp_path / SHARED_STEPS).write_text("steps")
    (tmp_path / ".run-of_other/old").mkdir(parents=True)
    (tmp_path / "run").rename(tmp_path / ".run-of_other/new")  # it was killed before its last step
    for name in ("run", "runs/of-a-search", "n" * _LONGEST_NAME):
        with on_own_disk(tmp_path / name) as run_dir:
            run_dir.mkdir(exist_ok=True)
            assert (run_dir.parent / SHARED_STEPS).read_text() == "steps", "all runs train equally long"
    assert (tmp_path / "run/played").exists()
    for beside in (".run-finished/old", ".new-2-finished/old", ".new-2-finished/new", ".new-partial0/new"):
        (tmp_path / beside).mkdir(parents=True)
    for name in ("run", "new"):  # none of these is a run that was brought back and lacks its name
        with on_own_disk(tmp_path / name) as run_dir:
            assert run_dir.exists() == (name == "run")

    def fill() -> None:
        patched.setattr(Path, "rename", lambda *_: os.truncate(tmp_path / "none", 0))

    torn = tmp_path / "run/summary.json"
    for trouble, why in ((fill, "No such file or directory"), (torn.touch, f"{torn}: ")):  # nor a full or lost disk
        with monkeypatch.context() as patched:
            patched.setattr("pausefl.studies.job.run_experiment", lambda *_, do=trouble, **__: do())
            said = str(Job(experiment().to_toml(), tmp_path, "run", is_elsewhere=True)())
        assert said.startswith(f"{tmp_path}/run: cannot be brought back ({why}")
        left = Path(said.partition("; move it there from ")[2].partition(" on ")[0])
        assert (left / "played").exists()
        shutil.rmtree(left.parent)


@pytest.mark.end_to_end
def test_an_interrupt_ends_all_and_says_how_to_go_on(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    words = ["compare", "demo", "--policies", "random,fastest", "--jobs", "2", "--run-dir", str(folder)]
    # So many rounds that no run can finish before the signal.
    words += ["--virtual", "--set", "experiment.rounds=1000000", "--set", "workload.model=synthetic"]
    pipes: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*PAUSEFL, *words], start_new_session=True, **pipes) as process:
        run_dirs = [folder / f"{policy}-seed1" for policy in ("random", "fastest")]
        wait_for(lambda: all(rounds_in(run_dir) for run_dir in run_dirs), "both runs", running=process)
        os.killpg(process.pid, signal.SIGINT)  # a terminal signals every process
        _, err = process.communicate(timeout=150)
    assert process.returncode == 130
    assert f"interrupted after 0 of 2 runs were finished; go on with: pausefl compare --resume {folder} --jobs 2" in err
    assert not any(is_finished(run_dir) for run_dir in run_dirs)
    assert all((run_dir / "summary.json").exists() for run_dir in run_dirs)  # each run ended in order


def test_after_an_interrupt_no_other_run_is_begun(tmp_path: Path) -> None:
    runs = [Planned("first", experiment()), Planned("second", experiment(rounds=100_000))]
    missing = side_by_side(1, lambda _: signal.raise_signal(signal.SIGINT)).play(runs, tmp_path)
    assert isinstance(missing["second"], CampaignInterrupted)
    assert str(missing["second"]) == "interrupted after 1 of 2 runs were finished"
    assert not is_finished(tmp_path / "second")


def test_a_run_whose_process_was_killed_goes_on(tmp_path: Path) -> None:
    said: list[str] = []
    run = Planned("long", experiment(rounds=400))

    def kill_once() -> int:
        wait_for(lambda: rounds_in(tmp_path / "long"), "rounds")
        server: Any = forkserver._forkserver
        for process in psutil.Process(server._forkserver_pid).children():
            process.kill()
        return rounds_in(tmp_path / "long")

    with ThreadPoolExecutor(1) as beside:
        killed = beside.submit(kill_once)
        assert not side_by_side(1, said.append).play([run], tmp_path)
        assert killed.result() < 400
    assert said[0].startswith("long: the server ended unexpectedly (exit code -9)")
    assert said[-1].startswith("long: completed (1 of 1")
    assert rounds_in(tmp_path / "long") == 400


@pytest.mark.parametrize(
    ("ended", "left", "under_way", "said"),
    [
        (0, 5, 0, ""),
        (2, 0, 0, ""),
        (2, 5, 0, ", about 50 min left"),
        (1, 15, 7, ", about 51 min left"),  # the first of eight at a time, so the other seven will end soon
        (8, 8, 8, ", about 7 min left"),
    ],
)
def test_what_is_left_follows_from_what_has_ended(ended: int, left: int, under_way: int, said: str) -> None:
    assert time_left(1200.0, ended, left, under_way) == said
    assert [in_words(seconds) for seconds in (0.1, 2.9, 89 * 60, 5400)] == ["1 s", "3 s", "89 min", "1.5 h"]
