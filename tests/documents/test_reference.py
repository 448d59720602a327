"""Generated pages are what the code, the results and the imports say, as `validate` is."""

import pkgutil
import re
import tomllib
from collections.abc import Iterator

import pytest

from docs.key_types import tables, type_in_words
from docs.write_reference import pages
from pausefl import cli
from pausefl.experiment.delays.laws import EXCHANGE_DELAYS
from pausefl.experiment.experiment import Experiment
from pausefl.experiment.loading import load_experiment, parse_experiment
from pausefl.experiment.population.availability import AVAILABILITIES
from pausefl.experiment.population.behaviours import BEHAVIOURS
from pausefl.experiment.population.simulated_drifts import DRIFTS
from pausefl.experiment.reference.keys import Key, keys_of, sentence_of
from pausefl.experiment.reference.listing import listing
from pausefl.experiment.server_records import selected_policy
from pausefl.experiment.toml_source import preset_names
from pausefl_client.data.partition import PARTITIONERS
from pausefl_client.registries import TRAINING_METHODS
from pausefl_server.selection import POLICIES
from rigs.links import links_of
from rigs.places import ROOT, script

DOCS = ROOT / "docs"
RECORDS = [
    *((table.header, table.record) for table in tables()),
    *((f"{kinds}.{name}", make)
      for kinds, makers in (("law", EXCHANGE_DELAYS), ("behaviour", BEHAVIOURS), ("availability", AVAILABILITIES),
                            ("drift", DRIFTS), ("partition", PARTITIONERS), ("training", TRAINING_METHODS),
                            ("policy", POLICIES))
      for name, make in makers.items()),
]  # fmt: skip
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
"""


def keys() -> Iterator[tuple[str, Key]]:
    """Every key of every table, with the table's name."""
    for name, make in RECORDS:
        yield from ((f"{name}.{key.name}", key) for key in keys_of(make) if key.name != "m" or name == "[selection]")


def experiments() -> Iterator[tuple[str, Experiment]]:
    yield from ((name, load_experiment(name)) for name in preset_names())
    yield "rich", parse_experiment(RICH)


@pytest.mark.parametrize(("name", "text"), pages().items())
def test_a_page_is_what_the_code_says(name: str, text: str) -> None:
    assert (DOCS / "reference" / name).read_text("utf-8") == text, "run python docs/write_reference.py"


def test_every_table_and_kind_says_what_it_is_and_every_key_has_a_type_and_a_sentence() -> None:
    assert [name for name, make in RECORDS if not sentence_of(make).endswith((".", ":"))] == []
    found = list(keys())
    assert len(found) > 200
    assert [name for name, key in found if not type_in_words(key.annotation) or not key.sentence.endswith(".")] == []


def test_a_number_has_bounds_unless_what_it_is_part_of_is_checked_as_a_whole() -> None:
    unbounded = {
        name for name, key in keys() if re.search(r"(number|integer)s?\b(?! [≥><])", type_in_words(key.annotation))
    }
    any_will_do = {f"law.{key}" for key in ("constant.value_s", "normal.mean_s", "day.phase_rounds")}
    any_will_do |= {"behaviour.scaled-update.factor"}
    ascending = {"law.schedule.rounds", "law.drift.rounds", "law.outage.windows"}
    prices = {f"policy.{name}.rho" for name in ("pause", "pause-brute", "sa-pause", "genie")}
    assert unbounded == any_will_do | ascending | prices | {"law.empirical.timeout_s", "policy.sa-pause.time_cap_s"}


@pytest.mark.parametrize(("name", "experiment"), [pytest.param(*case, id=case[0]) for case in experiments()])
def test_a_listing_reads_as_the_same_experiment(name: str, experiment: Experiment) -> None:
    text = listing(experiment)
    again = parse_experiment(text)
    assert listing(again) == text
    selection = ("selection", "latency", "clients")  # these hold tables whose own defaults the listing fills in
    assert again.model_dump(exclude=set(selection)) == experiment.model_dump(exclude=set(selection))
    assert selected_policy(again.selection) == selected_policy(experiment.selection)
    assert links_of(again) == links_of(experiment)
    assert again.ids_by_group == experiment.ids_by_group
    assert max(len(line) for line in text.splitlines() if line.startswith("#")) <= 80


def test_validate_prints_every_key_with_its_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["validate", "demo"])
    printed = capsys.readouterr().out
    words = " ".join(printed.replace("\n# ", " ").split())
    for header, record in ((t.header, t.record) for t in tables() if "group" not in t.header and "[[" not in t.header):
        for key in keys_of(record):
            assert key.sentence in words, f"{header} {key.name}"


def test_validate_prints_the_policys_defaults_and_those_of_kinds(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["validate", "demo", "--set", "selection.policy=oort", "--set", 'privacy.disclose=["loss"]'])
    printed = tomllib.loads(capsys.readouterr().out)
    assert printed["selection"]["oort"]["pacer_window"] == 20
    assert printed["selection"]["pause"]["zeta"] == 1.0
    assert printed["latency"]["delay"] == {"kind": "halves", "floor_s": 0.05, "sd_s": 0.05}


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
