"""Groups of clients in a comparison: how often each was chosen, and what is drawn as they join."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from pausefl.report.comparison import as_group_table, as_json, compare, write_comparison
from pausefl.report.comparison.groups import draw_groups
from pausefl.report.group_plots import accuracy_around_joins
from pausefl.results.selections import choices_by_group
from pausefl_server.records import Evaluation, LogEvent, RoundRecord
from pausefl_server.storage.store import Store
from test_comparison import ACCURACIES, write_run, write_runs

GROUPS = {"original": ("original-000",), "relevant": ("relevant-000", "relevant-001"), "poisoned": ("poisoned-000",)}


def write_grouped_run(path: Path, policy: str, seed: int, evaluated: Sequence[int] = (1, 2, 3, 4)) -> Path:
    """The same with groups, of which two join before round 2: `pause` then chooses relevant-000 only until round 4."""
    write_run(path, policy, seed)
    (path / "run.db").unlink()
    log = Store(path / "run.db")
    for number in range(1, 5):
        joins = {1: ["original"], 2: ["relevant", "poisoned"]}.get(number, [])
        events = tuple(LogEvent("joined", client_id) for group in joins for client_id in GROUPS[group])
        if number in evaluated:
            log.save_evaluations(number, [Evaluation("test", True, 100, ACCURACIES[policy][number - 1], 1.0)])
        chosen: tuple[str, ...] = ("original-000",) if number == 1 else ("relevant-000",)
        if number == 4 or (policy == "random" and number > 1):
            chosen = ("relevant-000", "poisoned-000")
        log.commit_round(RoundRecord(number, 1, chosen, None, (), events, 1.0, number, 1e-4, "digest"))
    log.close()
    roles = {"original": "", "relevant": 'role = "relevant"\n', "poisoned": 'role = "irrelevant"\n'}
    tables = (f"[clients.groups.{name}]\ncount = {len(ids)}\n{roles[name]}" for name, ids in GROUPS.items())
    (path / "config.toml").write_text("".join(tables))
    return path


def grouped_runs(folder: Path, evaluated: Sequence[int] = (1, 2, 3, 4)) -> Mapping[str, Sequence[Path]]:
    return {
        policy: [write_grouped_run(folder / f"{policy}-{s}", policy, s, evaluated) for s in (1, 2)]
        for policy in ACCURACIES
    }


def test_groups_are_counted_per_client_and_per_round_they_could_be_chosen(tmp_path: Path) -> None:
    pause, random = json.loads(json.dumps(as_json(compare(grouped_runs(tmp_path)))))["policies"]
    groups = pause["selections_by_group"]
    assert list(groups) == ["original", "relevant", "poisoned"]
    assert (groups["relevant"]["clients"], groups["relevant"]["join_round"]) == (2, 2)
    assert groups["relevant"]["selections_per_client"] == {
        "mean": 1.5, "sd": 0.0, "least": 1.5, "greatest": 1.5, "n_seeds": 2, "low": None, "high": None,
    }  # fmt: skip
    assert groups["original"]["per_client_round"]["mean"] == 1 / 4
    assert groups["poisoned"]["per_client_round"]["mean"] == 1 / 3
    assert pause["relevant_to_irrelevant"]["mean"] == 1.5
    assert random["relevant_to_irrelevant"]["mean"] == 0.5


def test_groups_of_which_none_joins_later_are_compared(tmp_path: Path) -> None:
    """There is a table of them, and nothing to draw."""
    runs = write_runs(tmp_path)
    for path in (path for of_policy in runs.values() for path in of_policy):
        (path / "config.toml").write_text("[clients.groups.only]\ncount = 1\n")
    page = write_comparison(compare(runs), tmp_path / "out")
    assert "<td>only</td>" in page.read_text("utf-8")
    assert not (page.parent / "groups.png").exists()


def test_the_table_of_groups_is_for_experiments_that_have_some(tmp_path: Path) -> None:
    table = as_group_table(compare(grouped_runs(tmp_path)))
    assert table is not None
    assert [column.header for column in table.columns] == ["group", "pause", "random"]
    assert table.caption == "times chosen per client, without failed attempts"
    assert as_group_table(compare(write_runs(tmp_path / "without"))) is None


def test_policies_are_drawn_around_the_joins_with_what_they_chose(tmp_path: Path) -> None:
    page = write_comparison(compare(grouped_runs(tmp_path)), tmp_path / "out")
    assert matplotlib.image.imread(page.parent / "groups.png")[..., :3].var() > 1e-3
    html = page.read_text(encoding="utf-8")
    assert "<td>poisoned</td><td>1.00<br>" in html
    assert "<td>relevant : irrelevant</td><td>1.50<br>" in html
    assert 'groups with role = "irrelevant"' in html
    assert "a group without a role counts as neither" in html
    svg = html.split('aria-label="groups"')[1].split("</svg>")[0]
    for text in ("Accuracy around the joins", "round 2", "pause", "random", "poisoned"):
        assert f">{text}<" in svg
    assert "not evaluated" not in svg


@pytest.mark.parametrize("evaluated", [(), (1,)])
def test_joins_are_named_where_nothing_was_evaluated_that_late(evaluated: Sequence[int], tmp_path: Path) -> None:
    comparison = compare(grouped_runs(tmp_path, evaluated))
    figure = draw_groups(comparison.runs, comparison.split)
    assert figure is not None
    figure.draw_without_rendering()  # a layout that cannot be is a warning, which is an error here
    above = figure.axes[0]
    assert above.get_xlim() == (0, 4)
    assert above.texts[0].get_text() == "round 2\nrelevant\npoisoned"
    run = comparison.runs["pause"][0]
    accuracy_around_joins(run, choices_by_group(run.records, run.groups)).draw_without_rendering()


def test_every_policys_choices_lie_within_its_panel(tmp_path: Path) -> None:
    """The panels of a row have one y axis, which the first one must not decide."""
    comparison = compare(grouped_runs(tmp_path))
    figure = draw_groups(comparison.runs, comparison.split)
    assert figure is not None
    for axes in figure.axes[1:]:
        assert axes.get_ylim()[1] >= max(np.max(line.get_ydata()) for line in axes.lines if line.get_linestyle() != ":")
