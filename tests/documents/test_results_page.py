"""Generated pages agree with the code, the imports, and the summaries of reproductions."""

import pkgutil
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest

from docs.key_types import tables, type_in_words
from docs.write_reference import KINDS, pages
from docs.write_results import results_page
from pausefl import cli
from pausefl.experiment.experiment import load_experiment, parse_experiment
from pausefl.experiment.in_force import in_force, listing
from pausefl.experiment.reference import Key, keys_of, sentence_of
from pausefl.experiment.server_records import selected_policy
from pausefl.experiment.toml_source import preset_names
from pausefl.results.report.style import rendered
from pausefl_reproduce.figure import draw_reproduction
from pausefl_server.selection import POLICIES
from rigs.experiments import links_of
from rigs.places import ROOT, script

DOCS = ROOT / "docs"
REGISTRIES = (POLICIES, *(registry for *_, registry in KINDS))
RECORDS = [(table.header, table.record) for table in tables()]
RECORDS += [(f"{each.kind}.{name}", make) for each in REGISTRIES for name, make in each.items()]
RICH = """
[clients.groups.old]
count = 6
[clients.groups.new]
count = 4
join_round = 3
behaviours = [{ kind = "label-noise" }, { kind = "dropout", probability = 0.1 }]
availability = { kind = "cycle", on_rounds = 3, off_rounds = 1 }
[selection]
policy = "sa-pause"
m = 3
[selection.pause]
clusters = { old-000 = 1 }
[latency]
down = { kind = "constant", value_s = 0.1 }
up = { kind = "sum", of = [{ kind = "gamma", mean_s = { kind = "constant", value_s = 1.0 }, shape = 2.0 },
                           { kind = "floor", floor_s = 0.1, of = { kind = "normal", mean_s = 1.0, sd_s = 2.0 } }] }
[[latency.groups]]
clients = "old-000..old-002"
bandwidth = { up_bytes_per_s = 1000000.0 }
[[latency.groups]]
clients = "new-000"
up = { kind = "sum", of = ["none", { kind = "constant", value_s = 0.1 }] }
"""


def keys() -> Iterator[tuple[str, Key]]:
    """Each key of each table, as (table and key, key)."""
    for name, make in RECORDS:
        yield from ((f"{name}.{key.name}", key) for key in keys_of(make) if key.name != "m" or name == "[selection]")


def test_a_page_is_what_the_code_says_and_names_keys_that_are() -> None:
    written = {page.name: page.read_text("utf-8") for page in (DOCS / "reference").iterdir()}
    assert written == pages(), "run python docs/write_reference.py"
    known = {f"{table.header.strip('[]')}.{key.name}" for table in tables() for key in keys_of(table.record)}
    named = rf"`((?:{'|'.join({key.partition('.')[0] for key in known})})\.[a-z_]+)`"
    found = {key for page in ROOT.glob("d*/**/*.md") for key in re.findall(named, page.read_text("utf-8"))} - known
    assert [key for key in found if not key.endswith((".log", ".toml", ".pem", ".key", ".crt"))] == []


def test_every_table_and_key_says_what_it_is_and_a_number_has_bounds_unless_its_whole_is_checked() -> None:
    assert [name for name, make in RECORDS if not sentence_of(make).endswith((".", ":"))] == []
    found = list(keys())
    assert len(found) > 200
    assert [name for name, key in found if not type_in_words(key.annotation) or not key.sentence.endswith(".")] == []
    number = r"(number|integer)s?\b(?! [≥><])"
    unbounded = {name for name, key in keys() if re.search(number, type_in_words(key.annotation))}
    any_will_do = {f"delays.{key}" for key in ("constant.value_s", "normal.mean_s", "day.phase_rounds")}
    any_will_do |= {"behaviours.scaled-update.factor"}
    ascending = {"delays.schedule.rounds", "delays.drift.rounds", "delays.outage.windows"}
    prices = {f"policies.{name}.rho" for name in ("pause", "pause-brute", "sa-pause", "genie")}
    assert unbounded == any_will_do | ascending | prices | {"policies.sa-pause.time_cap_s"}


@pytest.mark.parametrize("name", [*preset_names(), "rich"])
def test_a_listing_reads_as_the_same_experiment(name: str) -> None:
    experiment = parse_experiment(RICH) if name == "rich" else load_experiment(name)
    text = listing(experiment)
    again = parse_experiment(text)
    assert listing(again) == text
    read, said = in_force(again), in_force(experiment)  # the listing fills in the defaults of all named policies
    assert {**read, "selection": None} == {**said, "selection": None}
    assert selected_policy(again.selection) == selected_policy(experiment.selection)
    assert (links_of(again), again.ids_by_group) == (links_of(experiment), experiment.ids_by_group)
    assert max(len(line) for line in text.splitlines() if line.startswith("#")) <= 80


def test_validate_prints_every_key_with_its_sentence_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    day = '{kind="day",of={kind="none"},period_rounds=9,amplitude=0.5}'
    cli.main(["validate", "demo", "--set", f"workload.training_time={day}"])
    words = " ".join(capsys.readouterr().out.replace("\n# ", " ").split())
    for header, record in ((t.header, t.record) for t in tables() if "group" not in t.header and "[[" not in t.header):
        for key in keys_of(record):
            assert key.sentence in words, f"{header} {key.name}"
    assert "How many rounds after the start of a day round 1 lies. phase_rounds = 0.0" in words
    cli.main(["validate", "demo", "--set", "selection.policy=oort", "--set", 'privacy.disclose=["loss"]'])
    values = tomllib.loads(capsys.readouterr().out)
    assert (values["selection"]["oort"]["pacer_window"], values["selection"]["pause"]["zeta"]) == (20, 1.0)
    assert values["latency"]["delay"] == {"kind": "halves", "floor_s": 0.05, "sd_s": 0.05}


measured = script(DOCS / "generated_tables.py")


@pytest.mark.parametrize("document", sorted({document for _, document, *_ in measured.TABLES}))
def test_the_tables_of_a_document_are_those_of_the_results(document: str) -> None:
    written = text = (DOCS / document).read_text("utf-8")
    for name, _, results, table in (row for row in measured.TABLES if row[1] == document):
        written = measured.with_table(written, name, table(measured.read_lines(DOCS / "results" / results)))
    assert written == text, "run python docs/generated_tables.py"


def test_the_table_of_chaos_tells_of_runs_in_which_something_did_not_hold() -> None:
    play = {"scenario": "disk", "rounds": 0, "seconds": 60.0, "faults": {"full disk": 2}, "held": {}}
    assert "did not hold: 0." in measured.reliability.chaos_table([play])
    assert "2 faults in 1 runs" in measured.reliability.chaos_table([play])
    assert "did not hold: 1." in measured.reliability.chaos_table([play, play | {"violated": "a round was lost"}])


def test_the_drawings_of_the_architecture_are_what_the_imports_say() -> None:
    drawn = script(DOCS / "draw_architecture.py").drawn()
    kept = {path.name: path.read_text("utf-8") for path in DOCS.glob("architecture*")}
    assert drawn == kept, "python docs/draw_architecture.py draws them afresh"
    names = re.findall(r"`(pausefl\w*(?:\.\w+)+)`", drawn["architecture.md"])
    assert all(map(pkgutil.resolve_name, names)), "an error names what the code lacks"
    assert "pausefl_server.rounds.coordinator.Coordinator._play" in names


def stored(drawing: str) -> dict[str, Any]:
    """A summary of six seeds, as in reproduction.json."""
    interval = {"mean": 0.7, "low": 0.6, "high": 0.8, "n_seeds": 6}
    long = {"mean": 150.0, "low": 140.0, "high": 160.0, "n_seeds": 6}
    curve = {"x": [0.0, 50.0, 100.0], "mean": [0.1, 0.5, 0.8], "low": [0.0, 0.4, 0.7], "high": [0.2, 0.6, 0.9]}
    time = {"reached": 4, "horizon_s": 90.0, "mean": 40.0, "low": 30.0, "high": 50.0, "n_seeds": 6}
    by_all = {**time, "reached": 6, "horizon_s": None}
    difference = {"difference": {"mean": -9.0, "low": -12.0, "high": -5.0, "n_seeds": 6}, "win_rate": 0.75}
    selections = {"relevant-000": {"role": "relevant", "mean": 9.0}, "bad-000": {"role": "irrelevant", "mean": 2.0}}
    series = {
        "seeds": [1, 2, 3, 4, 5, 6],
        "rounds": 100,
        **dict.fromkeys(("last_accuracy", "best_accuracy"), interval),
        **dict.fromkeys(("total_latency_s", "greatest_leak", "median_leak"), long),
        "suspect_rounds": 0,
        "wall_clock_s": 1.0,
        "time_to": {"0.6": time, "0.7": by_all, "0.8": {**time, "reached": 0}},
        **dict.fromkeys(("accuracy_by_latency", "accuracy_by_round", "leak_by_round", "leak_by_latency"), curve),
        "median_leak_by_latency": curve,
        "newcomers": {"selections": selections, "by_round": curve},
        "epsilon_by_speed": [200.0, 100.0, 50.0],
        "best_by_seed": [0.6, 0.65, 0.7, 0.7, 0.75, 0.8],
    }
    return {
        "name": "small_mnist",
        "title": "A figure",
        "drawing": drawing,
        "leakage_over": "round",
        "scale": "full",
        "command": "pausefl reproduce small_mnist",
        "left_out": [],
        "hardware": "2 cores",
        "software": "1",
        "settings": {"rounds": 9, "clients": 3, "m": 2, "dataset": "mnist", "model": "mlp", "time_scale": 1.0},
        "privacy_unit": "coordinate",
        "epsilon_budget": 200.0,
        "baseline": "random",
        "published": {"pause": {"accuracy": [[50, 63.1]], "best": 83.9, "leak": [[100, 106]]}},
        "series": {
            "pause": {**series, "against_baseline": {"total_latency_s": difference, "time_to_0.6_s": difference}},
            "random": {**series, "against_baseline": None},
        },
    }


@pytest.mark.parametrize("drawing", ["latency", "elapsed", "rounds", "selections", "newcomers", "best"])
def test_each_drawing_shows_its_series(drawing: str, tmp_path: Path) -> None:
    (tmp_path / "it.png").write_bytes(rendered(draw_reproduction(stored(drawing)), "png"))
    assert matplotlib.image.imread(tmp_path / "it.png")[..., :3].var() > 1e-3


def test_a_section_shows_intervals_censored_seeds_and_published_values() -> None:
    page = results_page([stored("latency")])
    (row,) = re.findall(r"^\| `pause` .*", page, re.MULTILINE)
    assert "70.0 [60.0, 80.0], median 70.0 (66.2–73.8); archived 83.9" in row
    assert "| 40.0 [30.0, 50.0] (4 of 6 reached it; waits up to 90.0 s) | 40.0 [30.0, 50.0] |" in row
    assert "time to 80 %" not in page
    assert "150 [140, 160]; archived 106" in row
    assert "`pause` less `random`: total latency -9.0 [-12.0, -5.0] s, win rate 75 %; time to 60 % -9.0" in page
    assert "win rate 75 %, of waits up to 90.0 s." in page


def cells(summary: dict[str, Any], name: str) -> list[str]:
    """The series' last accuracy and total latency, as shown on the page."""
    (row,) = re.findall(rf"^\| `{name}` .*", results_page([summary]), re.MULTILINE)
    return [cell.strip() for cell in row.split("|")[3:5]]


def test_published_totals_stand_beside_runs_of_as_many_rounds() -> None:
    """Published totals without a number of rounds are of the figure's 300 rounds; it may be repeated with fewer."""
    summary = stored("latency")
    series = summary["series"]["pause"]
    summary["published"]["pause"] = {"final": 80.0, "total_s": 152, "rounds": None}
    assert cells(summary, "pause") == ["70.0 [60.0, 80.0]", "150 [140, 160]"]
    series["rounds"] = 300
    assert cells(summary, "pause") == ["70.0 [60.0, 80.0]; archived 80", "150 [140, 160]; archived 152"]
    series["budgets_spent_after"] = [299]
    assert cells(summary, "pause") == ["70.0 [60.0, 80.0]", "150 [140, 160]"]


def test_a_section_tells_how_many_rounds_were_played_and_of_how_many() -> None:
    summary = stored("latency")
    summary["settings"]["rounds"] = 100
    assert "\n- 100 rounds, 3 clients" in results_page([summary])
    pause, random = summary["series"].values()
    pause.update(rounds=24, budgets_spent_after=[24] * 6, total_latency_s=None)
    random.update(rounds=23, budgets_spent_after=[23] * 6, total_latency_s=None)
    page = results_page([summary])
    assert "\n- 23 to 24 of 100 rounds, 3 clients" in page
    assert f"0 of {6 * (23 + 24)} rounds are suspect" in page
    told = "privacy budgets ended the run with 6 of 6 seeds, after round 24 / 24 / 24 / 24 / 24 / 24."
    assert f"- `pause`: {told} Its curves end with the first of these." in page
    assert cells(summary, "pause") == ["70.0 [60.0, 80.0]", "–"]
    assert "time to 60 % (s)" in page, "links had delays, though no total is left"
