"""The queue of `make figures`: each missing run is played once, kept as a line, and merged into a figure."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import figures
from benchmarks.figures import Lines, Wanted, missing, play, read_lines, request_of, write_figures
from pausefl.results.stored_summary import text_in
from pausefl.studies.campaign import Missing, Planned
from pausefl.studies.executors import side_by_side
from pausefl.studies.playing import OnExecutor
from pausefl_proto.errors import ConfigError, PauseflError

pytestmark = pytest.mark.usefixtures("quickly_written")

WORKLOAD = ("workload.dataset=digits", "workload.model=mlp", "workload.examples=200", "workload.batch_size=10")
SMALL = (*WORKLOAD, "experiment.rounds=12", "evaluation.every=4")


@pytest.fixture(autouse=True)
def small_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = {
        "fedts-fig7": Wanted(1, ("poison-agnews",), SMALL),
        "variant": Wanted(1, ("fed-ts",), (*SMALL, "selection.fed-ts.guard=leave-one-out"), "fedts-fig9"),
    }
    monkeypatch.setattr(figures, "PLAN", plan)
    monkeypatch.setattr(figures, "KEPT", tmp_path / "docs/results/reproduce")
    monkeypatch.setattr(figures, "RUNS", tmp_path / "build")
    (tmp_path / "docs/results/reproduce").mkdir(parents=True)
    request_of.cache_clear()


@pytest.mark.end_to_end
def test_what_is_missing_is_played_kept_and_merged(tmp_path: Path) -> None:
    elsewhere = Lines(tmp_path / "elsewhere.jsonl")
    assert [run.name for _, _, run in missing(["fedts-fig7", "variant"], elsewhere)] == [
        "fedts-fig7/poison-agnews-seed1",
        "variant/fed-ts-seed1",
    ]
    play(["fedts-fig7", "variant"], elsewhere, jobs=2, device="cpu")
    assert not list(missing(["fedts-fig7", "variant"], Lines(tmp_path / "elsewhere.jsonl")))
    assert not list((tmp_path / "build").glob("*/*"))

    Lines().add(read_lines(tmp_path / "elsewhere.jsonl"))
    assert not list(missing(["fedts-fig7", "variant"], Lines()))
    write_figures(["fedts-fig7", "variant"], Lines())
    summary = json.loads(text_in(tmp_path / "docs/results/reproduce", "fedts-fig7.json"))
    assert summary["series"]["poison-agnews"]["seeds"] == [1]
    assert summary["series"]["poison-agnews"]["newcomers"]["selections"]["relevant-000"]["role"] == "relevant"
    assert "Fig. 7" in (tmp_path / "docs/results.md").read_text("utf-8")
    assert not (tmp_path / "docs/results/reproduce/variant.json").exists()


def test_a_failed_run_is_taken_up_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    begun: list[list[str]] = []

    class OneFails(OnExecutor):
        def play(self, runs: Sequence[Planned], folder: Path) -> Missing:
            failing, *others = [run.name for run in runs]
            begun.append([failing, *others])
            for name in (failing, *others):
                (folder / name).mkdir(parents=True, exist_ok=True)
            (folder / failing / "server.log").write_text("out of memory", "utf-8")
            for name in others:
                self.say(f"{name}: completed")
            return {failing: PauseflError("the server ended unexpectedly")}

    monkeypatch.setattr(figures, "side_by_side", lambda jobs, say: OneFails(side_by_side(jobs, say).executor, say))
    monkeypatch.setattr(figures, "_line", lambda *_: None)
    monkeypatch.setattr(figures, "is_played", lambda run, _: bool(begun) and run.name not in begun[-1][:1])
    play(["fedts-fig7", "variant"], Lines(), jobs=2, device="cpu")
    assert begun == [["fedts-fig7/poison-agnews-seed1", "variant/fed-ts-seed1"], ["fedts-fig7/poison-agnews-seed1"]]
    told = capsys.readouterr().out
    why = "the server ended unexpectedly\nout of memory"
    assert told.index(f"seed1, once more: {why}") < told.index(f"seed1, left out: {why}")


def test_a_run_with_other_settings_is_missing_and_a_damaged_file_is_named(tmp_path: Path) -> None:
    line = {"name": "variant", "series": "fed-ts", "settings": "another", "run": {"seed": 1}}
    (tmp_path / "docs/results/reproduce/variant.runs.jsonl").write_text(json.dumps(line) + "\n", "utf-8")
    assert len(list(missing(["variant"], Lines()))) == 1
    (tmp_path / "docs/results/reproduce/variant.runs.jsonl").write_text("{", "utf-8")
    with pytest.raises(ConfigError, match=r"variant\.runs\.jsonl, line 1: cannot be read"):
        Lines()
