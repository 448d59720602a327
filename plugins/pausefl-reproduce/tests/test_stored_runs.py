"""The runs that `make figures` stores: two queues lose none, and bad input is named and changes nothing."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import figures
from benchmarks.figures import Lines, fit_lines, main, read_lines
from docs.write_results import keep
from pausefl_proto.errors import ConfigError
from rigs.places import ROOT

NAME, SERIES = "fedts-fig8", "drift-weight-1"
RUNS = [line for line in read_lines(ROOT / f"docs/results/reproduce/{NAME}.runs.jsonl") if line["series"] == SERIES]


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of docs/results/reproduce."""
    monkeypatch.setattr(figures, "KEPT", tmp_path / "docs/results/reproduce")
    figures.KEPT.mkdir(parents=True)
    return figures.KEPT


def written(file: Path, lines: Sequence[Any]) -> Path:
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return file


def run_with(**changes: Any) -> dict[str, Any]:
    """A line that fits the plan, but for these changes in its run."""
    return {**RUNS[0], "run": {**RUNS[0]["run"], **changes}}


def test_two_queues_at_once_keep_the_runs_of_both(kept: Path) -> None:
    one, other = Lines(), Lines()
    one.add(RUNS[:1])
    other.add(RUNS[1:2])
    assert sorted(Lines().runs(NAME, SERIES)) == [1, 2]
    assert read_lines(kept / f"{NAME}.runs.jsonl") == RUNS[:2]


def test_a_merge_names_each_line_that_it_leaves_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of other settings, series or figures, cut short, of another version, damaged: none replaces a good one."""
    bad = [{**RUNS[0], key: "another"} for key in ("settings", "series", "name")]
    bad += [run_with(is_whole=False), run_with(unknown=1), run_with(evaluations={}), run_with(seed="1")]
    file = written(tmp_path / "elsewhere.jsonl", [RUNS[0], *bad, 3])
    assert list(fit_lines(file)) == RUNS[:1]
    told = re.findall(r"^left out: .*elsewhere.jsonl, line (\d): (.*)", capsys.readouterr().out, re.MULTILINE)
    assert [number for number, _ in told] == [*"23456789"]
    assert told[0][1] == f"{NAME}, {SERIES}: was played with other settings"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (f"{NAME} --series drift-wait-1", f"--series drift-wait-1: is shown by none of {NAME}"),
        (f"{NAME} --jobs 0", "--jobs 0: must be at least 1"),
        ("fig99 --merge none", "fig99: no such figure"),
        ("--merge none", "none: cannot be read"),
    ],
)
def test_bad_input_is_a_line_and_writes_no_page(
    words: str, named: str, kept: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["figures", *words.split()])
    assert main() == 2
    assert capsys.readouterr().err.startswith(f"figures: {named}")
    assert not (kept.parents[1] / "results.md").exists()


def test_a_figure_is_played_under_the_name_of_its_runs() -> None:
    """Runs of fig4 are those of fig2, which alone the page reads."""
    assert (figures._entry("fig4"), figures._entry("poisoned-200")) == ("fig2", "poisoned-200")


def without(summary: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in summary.items() if name != key}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda s: s | {"scale": "quick"}, r"was played with other settings \(--scale quick\)"),
        (lambda s: s | {"command": s["command"] + " --set a.b=1"}, r"was played with other settings \(a\.b=1\)"),
        (lambda s: s | {"series": without(s["series"], SERIES)}, rf"lacks runs of {SERIES}, which"),
        (lambda s: s | {"series": {n: o | {"seeds": [1]} for n, o in s["series"].items()}}, "lacks runs of drift"),
        (lambda s: without(s, "hardware"), "is of another version, or damaged"),
        (lambda s: s | {"name": "fig99"}, "fig99: no such figure"),
    ],
)
def test_a_summary_that_says_less_than_the_pages_is_left_out(
    change: Callable[[Mapping[str, Any]], Any], why: str, kept: Path, tmp_path: Path
) -> None:
    text = (ROOT / f"docs/results/reproduce/{NAME}.json").read_text("utf-8")
    (kept / f"{NAME}.json").write_text(text, "utf-8")
    (tmp_path / "reproduction.json").write_text(text, "utf-8")
    keep(tmp_path, kept.parents[1])
    (tmp_path / "reproduction.json").write_text(json.dumps(change(json.loads(text))), "utf-8")
    with pytest.raises(ConfigError, match=why):
        keep(tmp_path, kept.parents[1])
    assert (kept / f"{NAME}.json").read_text("utf-8") == text
