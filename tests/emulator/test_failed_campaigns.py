"""What `pausefl compare` and `sweep` say of runs that failed, and of runs of older versions, and how they end."""

import json
from pathlib import Path

import pytest

import pausefl
from pausefl.cli import main
from rigs.command import rounds_in, run, synthetic
from rigs.refusals import complaint


def ended(capsys: pytest.CaptureFixture[str], status: int, *arguments: object) -> str:
    """The last line of what a command complains of, which ends with this status."""
    with pytest.raises(SystemExit, match=f"^{status}$"):
        main([*map(str, arguments)])
    return capsys.readouterr().err.splitlines()[-1].removeprefix("pausefl: ")


@pytest.mark.slow
@pytest.mark.end_to_end
@pytest.mark.parametrize("command", ["compare", "sweep"])
def test_a_campaign_names_its_failed_run(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    config, folder = synthetic(tmp_path, rounds=3, clients=3, m=1, train_s=4.0), tmp_path / "all"
    failing = ["--set", "server.round_timeout_s=1.5", "--set", "server.rounds_without_update_max=1"]
    if command == "compare":
        arguments, names = [*failing, "--policies", "random"], "random-seed1"
    else:
        arguments, names = [*failing, "--set", "workload.train_s=0.0,4.0"], "train_s=4.0-seed1"
    said = complaint(capsys, command, config, "--run-dir", folder, *arguments, status=1)
    runs = "1 of 2" if command == "sweep" else "1 of 1"
    again = f"to play them again, delete their folders, then pausefl {command} --resume {folder}"
    assert said == f"{runs} runs ended early: {names}; {again}"
    assert list(folder.glob("*.png"))  # what there is stays


@pytest.mark.slow
@pytest.mark.end_to_end
@pytest.mark.parametrize("lost", ["outcome", "failures"])
def test_a_run_of_an_older_version_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], lost: str) -> None:
    folder = tmp_path / "all"
    main(["compare", str(synthetic(tmp_path, rounds=2)), "--policies", "random", "--run-dir", str(folder)])
    path = folder / "random-seed1/summary.json"
    summary = json.loads(path.read_text())
    del summary[lost]
    path.write_text(json.dumps(summary))
    capsys.readouterr()
    for words in (("compare", "--resume", folder), ("report", path.parent)):
        assert complaint(capsys, *words) == f"{path}: lacks {lost}; an older version may have written it"


RAISES = """
from pausefl_server.selection import Policy, Selection

class Raises(Policy):
    def select(self, state, context):
        if context.round == 3:
            raise KeyError("x")
        return Selection(context.eligible[: self.m])
"""


@pytest.mark.end_to_end
@pytest.mark.parametrize("more", [[], ["--jobs", "1"]])
def test_an_error_of_own_code_tells_a_way(tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str]) -> None:
    """The rounds before it are kept, and it names their run."""
    (tmp_path / "raising.py").write_text(RAISES)
    config, folder = synthetic(tmp_path, rounds=4, clients=3, m=1), tmp_path / "all"
    arguments = ["--policies", "raising:Raises", "--virtual", *more]
    said = ended(capsys, 1, "compare", config, "--run-dir", folder, *arguments)
    assert said.startswith("raising.Raises-seed1: KeyError: 'x' (")
    assert said.endswith(f"raising.py:7); go on with: pausefl compare --resume {folder}")


@pytest.mark.slow
@pytest.mark.end_to_end
def test_a_run_that_failed_says_how_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "raising.py").write_text(RAISES)
    config, run_dir = str(synthetic(tmp_path, rounds=4, clients=3, m=1)), tmp_path / "run"
    own = ["--set", "selection.policy=raising:Raises", "--set", "experiment.clock=virtual"]
    failed = run("run", config, "--run-dir", run_dir, *own)
    assert failed.returncode == 1
    assert failed.stderr.endswith(f"raising.py:7); go on with: pausefl run --resume {run_dir}\n")
    (tmp_path / "raising.py").write_text(RAISES.replace("== 3", "== 0"))
    assert run("run", "--resume", run_dir).returncode == 0
    assert rounds_in(run_dir) == 4


@pytest.mark.end_to_end
def test_a_run_that_an_impossible_choice_ends_says_so_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "choosing.py").write_text(RAISES.replace('raise KeyError("x")', "return Selection([])"))
    config, run_dir = synthetic(tmp_path, rounds=4, clients=3, m=1), tmp_path / "run"
    own = ["--set", "selection.policy=choosing:Raises", "--virtual"]
    said = ended(capsys, 1, "run", config, "--run-dir", run_dir, *own)
    assert said.startswith("selection.policy: in round 3 it chose rows of type list: must be")
    assert said.endswith(f"; go on with: pausefl run --resume {run_dir}")


@pytest.mark.end_to_end
def test_a_run_that_failed_in_python_says_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "raising_in_python.py").write_text(RAISES)
    monkeypatch.chdir(tmp_path)
    own = {"selection.policy": "raising_in_python:Raises", "experiment.clock": "virtual"}
    experiment = pausefl.load(synthetic(tmp_path, rounds=4, clients=3, m=1), own)
    with pytest.raises(pausefl.PauseflError) as failed:
        pausefl.run(experiment, progress=False)
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert str(failed.value).endswith(f"_python.py:7); go on with: pausefl.run(run_dir={str(run_dir)!r}, resume=True)")
    assert rounds_in(run_dir) == 2


@pytest.mark.end_to_end
def test_a_run_whose_rounds_are_all_played_is_not_to_be_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pausefl.results.report.write_report", interrupted)
    config, run_dir = synthetic(tmp_path, rounds=2, clients=3, m=1), tmp_path / "run"
    said = ended(capsys, 130, "run", config, "--run-dir", run_dir, "--virtual")
    assert said == f"interrupted; all rounds are played; pausefl report {run_dir} writes the report"
