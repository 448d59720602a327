"""Users' code: documented examples, where modules are found, how errors are reported, objects, a contribution."""

import os
import re
import shutil
import sys
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pausefl
from pausefl.experiment.groups import behaviours_of
from pausefl.experiment.population.behaviours import BehaviourChain
from pausefl.experiment.server_records import aggregation_of, optimizer_of
from pausefl_client.training.optimizers import LearningRates, make_optimizer
from pausefl_client.training.trainer import TrainingOutcome, TrainingSettings, WrappedTrainer
from pausefl_proto.errors import PauseflError
from pausefl_server.model.aggregation import Aggregation, AggregationRule
from pausefl_server.model.global_model import GlobalModel
from pausefl_server.model.optimizers import Optimizer
from rigs.command import played, python, run, summary_of
from rigs.places import ROOT, copied_sources

UPDATES = [np.random.default_rng(k).standard_normal(5, np.float32) for k in range(4)]
WEIGHTS = np.array([1.0, 2.0, 3.0, 4.0])


def blocks(language: str) -> list[str]:
    text = (ROOT / "docs/extending.md").read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the documented modules and the experiment that names them."""
    own = tmp_path / "own"
    own.mkdir()
    for block in blocks("python"):
        name = re.match(r'"""(\w+)\.py:', block)
        assert name is not None
        (own / f"{name[1]}.py").write_text(block, "utf-8")
        monkeypatch.delitem(sys.modules, name[1], raising=False)
    (own / "own.toml").write_text(f"[experiment]\nrounds = 3\n{blocks('toml')[0]}", "utf-8")
    monkeypatch.setattr(sys, "path", [*sys.path])
    return own


@pytest.mark.slow
def test_the_documented_examples_run_from_another_folder_and_go_on(folder: Path, tmp_path: Path) -> None:
    small = ("--set", "latency.time_scale=0.1", "--set", "evaluation.every=1")
    played("run", folder / "own.toml", "--run-dir", tmp_path / "run", *small)
    summary = summary_of(tmp_path / "run")
    assert (summary["rounds"], summary["failures"]) == (3, [])
    assert pausefl.load(tmp_path / "run/config.toml").experiment.python_path == (str(folder),)
    assert run("run", "--resume", tmp_path / "run").returncode == 0


@pytest.mark.parametrize(
    ("module", "line", "change"),
    [
        ("my_server", "points = np.stack(updates)", "raise KeyError('no updates')"),
        ("my_clients", "ends = np.cumsum(", "raise KeyError('no ends'); ends = np.cumsum("),
        ("my_clients", "pull = sum(", "raise KeyError('no pull'); pull = sum("),
    ],
)
@pytest.mark.slow
def test_an_error_is_told_with_file_and_line(folder: Path, tmp_path: Path, module: str, line: str, change: str) -> None:
    path = folder / f"{module}.py"
    source = path.read_text()
    path.write_text(source.replace(line, change))
    number = source[: source.index(line)].count("\n") + 1
    done = run("run", folder / "own.toml", "--run-dir", tmp_path / "run", "--set", "latency.time_scale=0.1")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert re.search(rf"KeyError: 'no \w+' \({re.escape(str(path))}:{number}\)", last), done.stderr


def test_the_documented_behaviour_changes_updates_by_draws_of_the_round(folder: Path) -> None:
    class Honest(WrappedTrainer):
        def __init__(self) -> None: ...

        def train(self, theta: np.ndarray, *, round: int) -> TrainingOutcome:
            return TrainingOutcome(theta + np.float32(round), loss=0.5)

    behaviours = behaviours_of(pausefl.load(folder / "own.toml").groups)["forgetful-000"]
    trainer = BehaviourChain(behaviours, seed=1, client_id="forgetful-000").trainer(Honest())
    first, second, again = (trainer.train(np.ones(3, np.float32), round=t).update for t in (1, 2, 1))
    assert first.dtype == np.float32
    assert np.array_equal(first, again)
    assert 0 < first[0] / 2 < 0.9
    assert 0 < second[0] / 3 < 0.9
    assert first[0] / 2 != pytest.approx(second[0] / 3)


class Loose(AggregationRule):
    def __init__(self, result: object) -> None:
        self.result = result

    def combine(self, updates: object, weights: object) -> np.ndarray:
        return self.result  # type: ignore[return-value]  # wrong on purpose


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ([1.0], "aggregation.rule: returned list; must be a float32 array of shape"),
        (np.zeros(5), "returned float64 of shape"),
        (np.zeros(4, np.float32), r"of shape \(4,\)"),
        (np.full(5, np.nan, np.float32), "not finite"),
    ],
)
def test_what_a_rule_returns_is_checked(result: object, message: str) -> None:
    with pytest.raises(PauseflError, match=message):
        Aggregation(Loose(result)).combine(UPDATES, WEIGHTS)


def test_what_a_rule_returns_may_lie_in_memory_as_it_likes() -> None:
    assert Aggregation(Loose(np.arange(5, dtype=np.float32)[::-1])).combine(UPDATES, WEIGHTS).flags.c_contiguous


@dataclass(frozen=True)
class Stateful(Optimizer):
    """An optimizer whose methods return what it was made with."""

    first: Any
    returned: Any

    def start(self, model_size: int) -> np.ndarray:
        return self.first  # type: ignore[no-any-return]  # wrong on purpose

    def step(self, theta: np.ndarray, change: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.returned  # type: ignore[no-any-return]  # wrong on purpose


class InPlace(Optimizer):
    """An optimizer that changes θ in place instead of returning a new one."""

    def step(self, theta: np.ndarray, change: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        theta += change
        return theta, state


def test_a_step_cannot_change_the_model_before_it() -> None:
    """Clients and the evaluator may still ask for the old model."""
    before = GlobalModel.start(np.ones(5, np.float32), InPlace())
    with pytest.raises(ValueError, match="read-only"):
        before.updated(UPDATES, WEIGHTS, Aggregation(), InPlace())
    assert before.theta.tolist() == [1.0] * 5


THETA, NONE = np.ones(5, np.float32), np.empty(0, np.float32)


@pytest.mark.parametrize(
    ("state", "returned"),
    [
        (np.zeros((2, 5), np.float32), r"float32 of shape \(2, 5\)"),
        (np.zeros(5), r"float64 of shape \(5,\)"),
        (np.float32(1), "float32"),
        (None, "NoneType"),
        ({"t": 0}, "dict"),
    ],
)
def test_an_optimizers_state_that_no_file_would_give_back_is_refused(state: object, returned: str) -> None:
    """A resumed run would otherwise differ, or fail."""
    message = f"aggregation.optimizer: its state must be a float32 array of one dimension, .*; returned {returned}$"
    with pytest.raises(PauseflError, match=message):
        GlobalModel.start(THETA, Stateful(state, None))
    optimizer = Stateful(NONE, (THETA, state))
    with pytest.raises(PauseflError, match=message):
        GlobalModel.start(THETA, optimizer).updated(UPDATES, WEIGHTS, Aggregation(), optimizer)


@pytest.mark.parametrize(
    ("stepped", "returned"), [(THETA, r"float32 of shape \(5,\)"), (None, "NoneType"), ((THETA,), "tuple")]
)
def test_an_optimizer_must_return_a_model_and_a_state(stepped: object, returned: str) -> None:
    optimizer = Stateful(NONE, stepped)
    message = f"aggregation.optimizer: its step must return the next model and state, a tuple; returned {returned}$"
    with pytest.raises(PauseflError, match=message):
        GlobalModel.start(THETA, optimizer).updated(UPDATES, WEIGHTS, Aggregation(), optimizer)


def test_the_documented_rule_and_optimizer_repeat_and_change_nothing(folder: Path) -> None:
    table = pausefl.load(folder / "own.toml").aggregation
    rule, optimizer = aggregation_of(table), optimizer_of(table.optimizer)
    before, state = [update.copy() for update in UPDATES], optimizer.start(5)
    first, second = rule.combine(UPDATES, WEIGHTS), rule.combine(UPDATES, WEIGHTS)
    stepped, again = (optimizer.step(THETA, UPDATES[0], state) for _ in range(2))
    assert np.array_equal(first, second)
    assert np.array_equal(stepped, again)
    assert first.dtype == stepped[0].dtype == stepped[1].dtype == np.float32
    assert np.array_equal(before, UPDATES)
    assert (THETA.tolist(), state.tolist()) == ([1.0] * 5, [0.0] * 5)
    assert not any(np.shares_memory(first, update) for update in UPDATES)
    np.testing.assert_allclose(rule.combine(UPDATES[:1], WEIGHTS[:1]), UPDATES[0], atol=1e-5)


def test_objects_are_held_by_name_and_fields(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(folder.parent)  # the folder is a package without an __init__.py
    from own import my_server  # type: ignore[import-not-found]  # a module of the document's

    from pausefl_server.selection.policies.pause import Pause

    objects = {"aggregation.rule": my_server.GeometricMedian(iterations=3), "selection.policy": Pause(m=3, alpha=7.0)}
    experiment = pausefl.load("demo", objects | {"aggregation.optimizer": my_server.Nesterov})
    assert experiment.aggregation.rule == {"kind": "own.my_server:GeometricMedian", "iterations": 3}
    assert experiment.selection.m == 3
    assert experiment.selection.parameters("pausefl_server.selection.policies.pause:Pause")["alpha"] == 7.0
    assert experiment.experiment.python_path == (str(folder.parent),)


def test_what_cannot_travel_is_refused_in_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    lock, data = threading.Lock(), np.zeros(3 * 10**6)

    def locked() -> None:
        lock.acquire()

    for value, message in (
        (locked, r"workload\.model = locked: cannot be carried by value \(TypeError: cannot pickle"),
        (lambda *_: data, "= lambda: holds 24 MB of values; let it read them from a file$"),
        ({object()}, "object: other processes cannot be given it; give its class or a function"),
        (np.zeros(10**5), "^workload.model = ndarray object: other processes cannot be given it"),
        ({"kind": "x" * 999}, r"^workload.model = .{,110}: must be a valid string$"),
        ("__main__:net", "workload.model = __main__:net: is no class and no function of this script or notebook"),
    ):
        with pytest.raises(pausefl.ConfigError, match=message):
            pausefl.load("demo", {"workload.model": value})


def test_python_path_is_relative_to_the_file(folder: Path) -> None:
    path = folder.parent / "elsewhere.toml"
    path.write_text("[experiment]\npython_path = ['own']\n[aggregation]\nrule = 'my_server:GeometricMedian'")
    assert pausefl.load(path).experiment.python_path == (str(folder),)
    path.write_text("[experiment]\npython_path = ['gone']")
    gone = folder.parent / "gone"
    with pytest.raises(pausefl.ConfigError, match=f'^experiment.python_path: "{gone}" is no folder$'):
        pausefl.load(path)
    path.write_text(f"[experiment]\npython_path = ['{gone}']")  # as in the config of a run of another machine
    assert pausefl.load(path).experiment.python_path == (str(gone),)
    other = folder.parent / "my_server.py"
    other.write_text("class GeometricMedian: ...")
    with pytest.raises(pausefl.ConfigError, match=f"python_path: {other} is hidden by {folder}/my_server.py; give it"):
        pausefl.load("demo", {"experiment.python_path": [str(folder.parent)], "aggregation.rule": "my_server:Median"})
    shutil.copy(folder / "my_server.py", other)  # the same text is no other code
    pausefl.load(
        "demo", {"experiment.python_path": [str(folder.parent)], "aggregation.rule": "my_server:GeometricMedian"}
    )


def test_another_optimizer_of_torch_is_named_by_its_module_and_parameters_of_a_built_in_rule_have_a_table() -> None:
    settings = TrainingSettings(optimizer="torch.optim:Adafactor", learning_rate=0.5)
    optimizer = make_optimizer(settings, [torch.nn.Parameter(torch.zeros(1))])
    assert (type(optimizer).__name__, optimizer.defaults["lr"]) == ("Adafactor", 0.5)
    of_matrices = replace(settings, optimizer="torch.optim:Muon", schedule={"kind": "exponential", "gamma": 0.5})
    assert LearningRates(of_matrices).at(2) == 0.25
    with pytest.raises(pausefl.ConfigError, match=r'= "trimmed-mean": has no keys here; .* \[aggregation\]$'):
        pausefl.load("demo", {"aggregation.rule": {"kind": "trimmed-mean", "harmfull": 1}})


POLICY = '''"""The clients chosen least often: a policy for the test of the recipe."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pausefl_server.selection.base import Context, Policy, Selection
from pausefl_server.selection.terms import rows_in_tie_order


@dataclass(frozen=True)
class Rarest(Policy):
    """Chooses the m eligible clients that were chosen least often."""

    patience_s: float = 1.0
    """How long the test of the recipe waits."""

    def select(self, state: Any, context: Context) -> Selection:
        rows = rows_in_tie_order(context)
        order = np.argsort(context.table.chosen[rows], kind="stable")
        return Selection(np.sort(rows[order[: self.m]]))
'''
SELECTION = Path("server/pausefl_server/selection")


@pytest.mark.end_to_end
def test_a_policy_that_is_named_alone_comes_under_contract_and_into_the_reference(tmp_path: Path) -> None:
    copied_sources(tmp_path)
    (tmp_path / SELECTION / "policies/rarest.py").write_text(POLICY, "utf-8")
    named, line = tmp_path / SELECTION / "__init__.py", '        "fastest": Fastest,\n'
    before, found, after = named.read_text("utf-8").partition(line)
    assert found
    own = '        "rarest": "pausefl_server.selection.policies.rarest:Rarest",\n'
    named.write_text(before + line + own + after, "utf-8")

    contract = printed_in(tmp_path, "-m", "pytest", "-q", "tests/server/test_policies.py", "-k", "rarest")
    assert int(re.findall(r"(\d+) passed", contract)[0]) > 10
    printed_in(tmp_path, "docs/write_reference.py")
    assert "`patience_s`" in (tmp_path / "docs/reference/configuration.md").read_text("utf-8")


def printed_in(checkout: Path, *arguments: str) -> str:
    """The output of a Python command that uses the packages of that checkout."""
    packages = [checkout / name for name in ("proto", "process", "server", "client", "emulator")]
    path = os.pathsep.join(map(str, [*packages, *checkout.glob("plugins/*")]))
    return python(*arguments, cwd=checkout, PYTHONPATH=path)
