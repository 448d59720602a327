"""Groups of clients in a comparison: how often each was chosen, and what is drawn as they join."""

import json
from pathlib import Path

import matplotlib.image

from pausefl.results.report.comparison import as_json, compare, write_comparison
from rigs.comparisons import grouped_runs, write_runs


def test_groups_are_counted_per_client_and_per_round_they_could_be_chosen(tmp_path: Path) -> None:
    pause, random = json.loads(json.dumps(as_json(compare(grouped_runs(tmp_path)))))["policies"]
    groups = pause["selections_by_group"]
    assert list(groups) == ["original", "relevant", "poisoned"]
    assert (groups["relevant"]["clients"], groups["relevant"]["join_round"]) == (2, 2)
    assert groups["relevant"]["selections_per_client"] == {
        "mean": 1.5, "sd": 0.0, "least": 1.5, "greatest": 1.5, "n_seeds": 2, "low": None, "high": None,
        "quartiles": [1.5, 1.5, 1.5],
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
