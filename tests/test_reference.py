"""The reference of configuration keys: docs/reference/configuration.md is what the code says, as is `validate`."""

import dataclasses
import importlib.util
import inspect
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import pausefl
from pausefl import cli
from pausefl.config.delays.laws import EXCHANGE_DELAYS
from pausefl.config.experiment import Experiment
from pausefl.config.loading import load_experiment, parse_experiment
from pausefl.config.server_records import selected_policy
from pausefl.config.toml_source import preset_names
from pausefl.population.availability import AVAILABILITIES
from pausefl.population.behaviours import BEHAVIOURS
from pausefl.population.simulated_drifts import DRIFTS
from pausefl.reference.catalogue import tables
from pausefl.reference.keys import Key, keys_of, sentence_of
from pausefl.reference.listing import listing
from pausefl_client.data.partition import PARTITIONERS
from pausefl_client.registries import TRAINING_METHODS
from pausefl_server.clients import ClientTable
from pausefl_server.records import Miss
from pausefl_server.selection import POLICIES, Context, Inspection, PolicyObservation, PolicyRound, Selection

DOCS = Path(__file__).parents[1] / "docs"
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


def writer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("write_reference", DOCS / "write_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def keys() -> Iterator[tuple[str, Key]]:
    """Every key of every table, with the table's name."""
    for name, make in RECORDS:
        yield from ((f"{name}.{key.name}", key) for key in keys_of(make) if key.name != "m" or name == "[selection]")


def experiments() -> Iterator[tuple[str, Experiment]]:
    yield from ((name, load_experiment(name)) for name in preset_names())
    yield "rich", parse_experiment(RICH)


@pytest.mark.parametrize(("name", "text"), writer().pages().items())
def test_a_page_is_what_the_code_says(name: str, text: str) -> None:
    assert (DOCS / "reference" / name).read_text("utf-8") == text, "run python docs/write_reference.py"


@pytest.mark.parametrize("name", pausefl.__all__)
def test_every_public_name_and_its_attributes_are_described(name: str) -> None:
    page = (DOCS / "reference" / "api.md").read_text("utf-8")
    section = page.split(f"## `pausefl.{name}`\n")[1].split("\n## ")[0]
    value = getattr(pausefl, name)
    public = {n for n in (*vars(value), *inspect.get_annotations(value)) if not n.startswith(("_", "model_"))}
    if isinstance(value, type) and value is not pausefl.Experiment:  # its tables are in the reference of keys
        assert [n for n in public if f"| `{n}" not in section] == []


@pytest.mark.parametrize("record", [Context, ClientTable, PolicyRound, PolicyObservation, Miss, Selection, Inspection])
def test_everything_that_a_policy_gets_or_returns_is_described(record: type[Any]) -> None:
    section = writer().of_policies().split(f"## `{record.__name__}`\n")[1].split("\n## ")[0]
    fields = [field.name for field in dataclasses.fields(record)]
    assert [name for name in fields if f"| `{name}` |" not in section] == []
    assert "()` |" not in section, "a policy calls no method of it"


def test_every_argument_of_a_command_has_a_meaning() -> None:
    assert "|  |" not in writer().commands()


@pytest.mark.parametrize(("name", "key"), [pytest.param(name, key, id=name) for name, key in keys()])
def test_every_key_has_a_type_and_a_sentence(name: str, key: Key) -> None:
    assert key.type
    assert key.sentence.endswith("."), f"{name} needs a docstring of one sentence under its field"


def test_every_table_and_kind_says_what_it_is() -> None:
    assert [name for name, make in RECORDS if not sentence_of(make).endswith((".", ":"))] == []


@pytest.mark.parametrize(("name", "experiment"), [pytest.param(*case, id=case[0]) for case in experiments()])
def test_a_listing_reads_as_the_same_experiment(name: str, experiment: Experiment) -> None:
    text = listing(experiment)
    again = parse_experiment(text)
    assert listing(again) == text
    selection = ("selection", "latency", "clients")  # these hold tables whose own defaults the listing fills in
    assert again.model_dump(exclude=set(selection)) == experiment.model_dump(exclude=set(selection))
    assert selected_policy(again.selection) == selected_policy(experiment.selection)
    assert again.links() == experiment.links()
    assert again.group_of_client == experiment.group_of_client
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
