"""Users' policies: what they may return, how they are named, and the documented examples."""

import math
import random
import re
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from pausefl.experiment.experiment import parse_experiment
from pausefl.experiment.server_records import selected_policy
from pausefl.results.reading import RunData
from pausefl.results.report.learning import learning
from pausefl.results.stored_summary import Summary
from pausefl.studies.simulation.engine import is_compiled
from pausefl.studies.simulation.outputs import run_simulation, setting_of
from pausefl_proto.errors import ConfigError, PauseflError
from pausefl_server.rounds.choosing import choose
from pausefl_server.selection import Context, Inspection, Policy, Selection, checked, policy_class
from pausefl_server.selection.policies.baselines import Fastest, PowD
from pausefl_server.selection.policies.genie import Genie
from pausefl_server.selection.policies.oort import Oort
from pausefl_server.selection.policies.pause import Pause
from pausefl_server.selection.policies.sa_pause import SaPause
from pausefl_server.selection.validation import checked_inspection
from pausefl_server.state import RunState
from rigs.command import synthetic
from rigs.newcomers import round_with
from rigs.places import ROOT
from rigs.policies import M, Play, context_of
from rigs.refusals import complaint, refused

OwnModule = Callable[[str, str], Path]


def selection_of(rows: Any, weights: Any = None, **details: Any) -> Selection:
    chosen = np.array(rows, np.int64) if isinstance(rows, list) else rows
    return Selection(chosen, np.array(weights) if isinstance(weights, list) else weights, details)


PAIR = np.array([0, 1])


def test_rows_come_in_any_order_and_a_policy_cannot_change_which_are_eligible() -> None:
    """The choice is checked against the eligible rows, which must stay as they were."""
    context = context_of(Play(Pause(M)).table, 1)
    for selection in (selection_of([5, 0, 12]), selection_of([3, 0, 3], [0.25, 0.5, 0.25]), selection_of([7], size=2)):
        assert checked(selection, context) is selection
    rows = np.arange(13)
    context = context_of(Play(Pause(M)).table, 1, eligible=rows)
    with pytest.raises(ValueError, match="read-only"):
        context.rng.shuffle(context.eligible)
    assert rows.flags.writeable


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        (None, "a NoneType: must be a pausefl_server.selection.Selection"),
        ([0, 1], "a list: must be a pausefl_server.selection.Selection"),
        (Selection([0, 1]), "rows as list: must be an int64 array of one row or more"),  # type: ignore[arg-type]  # wrong on purpose
        (selection_of([]), "rows as int64 of shape (0,): must be"),
        (selection_of([[0, 1]]), "rows as int64 of shape (1, 2): must be"),
        (selection_of(np.array([0.0, 1.0])), "rows as float64 of shape (2,): must be"),
        (selection_of(np.ones(13, np.bool_)), "rows as bool of shape (13,): must be"),
        (selection_of([-1, 0]), "row -1: must be one of context.eligible"),
        (selection_of([0, 99]), "row 99: must be one of context.eligible"),
        (selection_of([1, 2, 3]), "row 2: must be one of context.eligible"),
        (selection_of([0, 1, 0]), "row 0 twice: must have weights for that"),
        (selection_of([0, 1], 0.5), "weights as float: must be a float64 array of one for each of 2 rows"),
        (selection_of([0, 1], [1]), "weights as int64 of shape (1,): must be"),
        (selection_of([0, 1], [0.5]), "weights as float64 of shape (1,): must be"),
        (selection_of([0, 1], [0.5, 0.0]), "weights that are not all finite and above 0"),
        (selection_of([0, 1], [0.5, np.nan]), "weights that are not all finite and above 0"),
        (selection_of([0, 1], [0.5, np.inf]), "weights that are not all finite and above 0"),
        (selection_of([0, 1], size=np.int64(2)), "details with size as int64: must be a float"),
        (selection_of([0, 1], size="two"), "details with size as str: must be a float"),
        (selection_of([0, 1], size=math.nan), "details with size = nan: must be finite"),
        (selection_of([0, 1], size=-math.inf), "details with size = -inf: must be finite"),
        (Selection(PAIR, details={3: 1.0}), "details with a name as int: must be a text"),  # type: ignore[dict-item]  # wrong on purpose
        (Selection(PAIR, details=[1.0]), "details as list: must be a dict of numbers by name"),  # type: ignore[arg-type]  # wrong on purpose
        (Selection(PAIR, details=None), "details as NoneType: must be a dict"),  # type: ignore[arg-type]  # wrong on purpose
        (Selection(PAIR, cluster_penalty_s=math.nan), "cluster_penalty_s = nan: must be finite"),
        (Selection(PAIR, cluster_penalty_s="3"), "cluster_penalty_s as str: must be a float"),  # type: ignore[arg-type]  # wrong on purpose
    ],
)
def test_what_cannot_be_played_is_one_clear_line(selection: Any, message: str) -> None:
    play = Play(Pause(M))
    play.table.retired[2] = True
    with refused(f"selection.policy: in round 3 it chose {message}", PauseflError):
        checked(selection, context_of(play.table, 3))


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        (selection_of([0, 1, 2]), "3 rows: must be at most its m, the 2 places that are free"),
        (selection_of([0, 1], [0.5, 0.5]), "weights: must be None in an asynchronous run"),
    ],
)
def test_a_choice_of_an_asynchronous_run_fits_its_free_places(selection: Selection, message: str) -> None:
    context = context_of(Play(Pause(M)).table, 3)
    assert checked(selection_of(PAIR), context, places=2)
    with refused(f"selection.policy: in round 3 it chose {message}", PauseflError):
        checked(selection, context, places=2)


BOTH = np.ones(2, np.bool_)


@pytest.mark.parametrize(
    ("inspection", "message"),
    [
        ({}, "a dict: must be a pausefl_server.selection.Inspection, or None"),
        (Inspection(None, BOTH), "statistics as NoneType: must be a list of dicts, one for each update"),  # type: ignore[arg-type]  # wrong on purpose
        (Inspection([{}], BOTH), "1 statistics: must be one for each of 2 updates"),
        (Inspection([{}, None], BOTH), "statistics as NoneType: must be a dict of numbers by name"),  # type: ignore[list-item]  # wrong on purpose
        (Inspection([{}, {"a": math.nan}], BOTH), "statistics with a = nan: must be finite"),
        (Inspection([{"a": "x"}, {}], BOTH), "statistics with a as str: must be a float"),  # type: ignore[dict-item]  # wrong on purpose
        (Inspection([{"a": np.float32(2)}, {}], BOTH), "statistics with a as float32: must be"),  # type: ignore[dict-item]  # wrong on purpose
        (Inspection([{}, {}], BOTH[:1]), "admitted as bool of shape (1,): must be a bool array of one for"),
        (Inspection([{}, {}], [True, True]), "admitted as list: must be a bool array"),  # type: ignore[arg-type]  # wrong on purpose
        (Inspection([{}, {}], PAIR), "admitted as int64 of shape (2,): must be a bool array"),
    ],
)
def test_what_a_policy_finds_in_updates_is_checked(inspection: Any, message: str) -> None:
    with pytest.raises(PauseflError, match=re.escape(f"selection.policy: in round 3 its inspect returned {message}")):
        checked_inspection(inspection, 2, 3)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("class Mine(", "SyntaxError: '\\(' was never closed"),
        ("raise RuntimeError('no\\nlicence')", "RuntimeError: no licence"),
        ("raise KeyError", "KeyError"),
        ("raise SystemExit('bye')", "SystemExit: bye"),
    ],
)
def test_a_module_that_cannot_be_imported_is_one_clear_line(source: str, message: str, own_module: OwnModule) -> None:
    """Whatever error it raises, and whether it should hold a policy or a Φ."""
    own_module("mine_alone", source)
    for name, ask in (("selection.policy", policy_class), ("phi_g", lambda name: SaPause(M, phi_g=name))):
        said = f"{name} = ['\"]mine_alone:Mine['\"]: .*{message}"
        with pytest.raises((ConfigError, ValueError), match=said) as caught:
            ask("mine_alone:Mine")
        assert "\n" not in str(caught.value)


MISMADE = """
from dataclasses import dataclass
from pausefl_server.selection import Policy

@dataclass(frozen=True)
class Mismade(Policy):
    slack: int = 1

    def __post_init__(self):
        raise {error}

    def select(self, state, context):
        raise NotImplementedError
"""


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ('ValueError("bad")', ": ValueError: bad (FILE:10)"),
        ('ValueError("slack = 1: must be 2")', ".slack = 1: must be 2"),
        ("AssertionError", ": AssertionError (FILE:10)"),
        ('KeyError("gone")', ": KeyError: 'gone' (FILE:10)"),
        ("SystemExit(3)", ": SystemExit: 3 (FILE:10)"),
    ],
)
def test_a_policy_that_cannot_be_made_says_where_or_names_a_key(error: str, said: str, own_module: OwnModule) -> None:
    file = own_module("mismade", MISMADE.format(error=error))
    with pytest.raises(ConfigError) as refused:
        selected_policy(parse_experiment("", ["selection.policy=mismade:Mismade"]).selection)
    assert str(refused.value) == 'selection."mismade:Mismade"' + said.replace("FILE", str(file))


WITH_INIT = """
from pausefl_server.selection import Policy

class WithInit(Policy):
    def __init__(self, m, alpha=1.0):
        self.alpha = alpha

    def select(self, state, context):
        raise NotImplementedError

class Heir(WithInit):
    pass
"""


@pytest.mark.parametrize("name", ["with_init:WithInit", "with_init:Heir"])
def test_a_policy_whose_own_init_would_not_be_called_is_refused(name: str, own_module: OwnModule) -> None:
    own_module("with_init", WITH_INIT)
    with refused(f'selection.policy = "{name}": has an __init__ of its own; a policy'):
        selected_policy(parse_experiment("", {"selection.policy": name}).selection)


EXITING = """
from dataclasses import dataclass
from pausefl_server.selection import Policy

@dataclass(frozen=True)
class Exiting(Policy):
    def select(self, state, context):
        raise SystemExit(3)
"""


@pytest.mark.end_to_end
@pytest.mark.parametrize("command", [["simulate", "--rounds", "5"], ["run", "--virtual"]])
def test_a_policy_that_would_exit_is_one_line_with_its_place(
    command: list[str], tmp_path: Path, own_module: OwnModule, capsys: pytest.CaptureFixture[str]
) -> None:
    file = own_module("exiting", EXITING)
    arguments = (*command, synthetic(tmp_path), "--run-dir", tmp_path / "run", "--set=selection.policy=exiting:Exiting")
    assert complaint(capsys, *arguments, status=1) == f"SystemExit: 3 ({file}:8)"


def test_policies_say_what_clients_must_disclose_and_ask_for_an_oracle() -> None:
    assert Oort(5).disclosures == PowD(5).disclosures == {"loss"}
    assert SaPause(5, phi_g="label_diversity").disclosures == {"labels"}
    assert SaPause(5).disclosures == Pause(5).disclosures == frozenset()
    for policy in (Fastest(M), Genie(M)):
        assert policy.needs_oracle
        with pytest.raises(ValueError, match="needs the true mean latencies"):
            policy.select(None, context_of(Play(Pause(M)).table, 1, oracle=None))


@dataclass(frozen=True)
class Drawing(Policy):
    """Draws from the generators that all code of a process shares."""

    def start(self) -> float:
        return random.random()

    def select(self, state: Any, context: Context) -> Selection:
        return selection_of(random.sample(np.random.permutation(context.eligible)[1:].tolist(), self.m))  # noqa: NPY002


def test_a_policy_that_draws_from_shared_generators_repeats_its_choices_and_no_others() -> None:
    table, state = Play(Pause(M)).table, RunState.start(Drawing(M), 1)
    first, second, again = (choose(context_of(table, t), state).rows.tolist() for t in (1, 2, 1))
    assert first == again != second
    assert state.policy_state == RunState.start(Drawing(M), 1).policy_state


# --- the examples of docs/selection.md


def example(name: str) -> str:
    """The Python block of docs/selection.md that starts with this file name."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/selection.md").read_text("utf-8"), re.DOTALL)
    (block,) = [block for block in blocks if block.startswith(f'"""{name}.py:')]
    return str(block)


def test_the_documented_policy_and_phi_of_ones_own_work(own_module: OwnModule) -> None:
    own_module("my_policies", example("my_policies"))
    name = "my_policies:EqualTurns"
    experiment = parse_experiment("", {"selection.policy": name, "selection.m": 4, f'selection."{name}".slack': 2})
    assert np.ptp(Play(selected_policy(experiment.selection)).rounds(13).table.chosen) <= 2
    with refused("slack = 0: must be at least 1"):
        selected_policy(parse_experiment("", {f'selection."{name}".slack': 0}).selection, name)
    own_module("my_phi", example("my_phi"))

    def spreads(policy: Policy) -> list[float]:
        played = Play(policy).rounds(20)
        return [float(np.std(played.table.n_examples[played.table.rows(r.chosen)])) for r in played.records[4:]]

    phi = SaPause(M, phi_g="my_phi:size_spread", neighbourhood="swap", gamma=0.0, steps=500)
    assert min(spreads(phi)) > 1.2 * np.mean(spreads(Pause(M)))


# --- subclasses of built-in policies: simulated and reported as their parents are

SUBCLASSES = '''
from dataclasses import dataclass

from pausefl_server.selection.policies.fed_ts import FedTs
from pausefl_server.selection.policies.pause import Pause


@dataclass(frozen=True)
class MyPause(Pause):
    """PAUSE under another name, with a parameter that only its author reads."""

    note: str = "mine"


@dataclass(frozen=True)
class Hasty(Pause):
    """PAUSE that searches in a way of its own."""

    def _search(self, choice, context):
        return choice.exact(), {"hasty": 1.0}


@dataclass(frozen=True)
class MyFedTs(FedTs):
    """Fed-TS under another name."""
'''


def test_a_subclass_of_pause_is_simulated_as_pause(tmp_path: Path, own_module: OwnModule) -> None:
    """The compiled rounds are used if the subclass chooses as PAUSE does."""
    own_module("policies_of_mine", SUBCLASSES)
    found = []
    for name, compiled in (("policies_of_mine:MyPause", True), ("pause", True), ("policies_of_mine:Hasty", False)):
        experiment = parse_experiment("clients.count = 8", [f'selection.policy="{name}"', "selection.m=3"])
        assert is_compiled(selected_policy(experiment.selection), setting_of(experiment)) is compiled
        found.append(run_simulation(experiment, 60, tmp_path / name, is_drawn=False) | {"policy": ""})
    assert found[0] == found[1]


def test_a_subclass_of_fed_ts_is_reported_as_fed_ts(tmp_path: Path, own_module: OwnModule) -> None:
    own_module("policies_of_mine", SUBCLASSES)
    log = [
        round_with(1, ("original-000", "original-001"), original_000=0.1, original_001=0.2),
        round_with(2, ("late-000", "late-001"), late_000=1.0, late_001=9.0),
    ]
    summary = cast(Summary, {"policy": "fed-ts", "policy_parameters": {"m": 2}, "seed": 1})
    said: dict[str, Any] = {"path": tmp_path, "config": "", "summary": summary, "records": log}
    tables: dict[str, Any] = {field.name: {} for field in fields(RunData) if field.default is MISSING} | said
    ours = RunData(**tables)
    own = replace(ours, summary={**summary, "policy": "policies_of_mine:MyFedTs"})
    expected, found = learning(ours), learning(own)
    assert expected is not None
    for name in ("s", "f", "threshold"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
