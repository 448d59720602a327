"""Methods of one's own that take other arguments than they are called with: refused before a run, in one line."""

import re
import sys
from pathlib import Path

import pytest

from pausefl.cli import main
from pausefl.experiment.population.behaviours import BEHAVIOURS
from pausefl_client.registries import TRAINING_METHODS
from pausefl_process.registry import Registry
from pausefl_proto.errors import ConfigError
from pausefl_server.model.aggregation import RULES
from pausefl_server.model.optimizers import SERVER_OPTIMIZERS
from pausefl_server.selection import POLICIES

MODULE = """
from functools import wraps

from pausefl.experiment.population.behaviours import Behaviour
from pausefl_client.training.method import TrainingMethod
from pausefl_server.model.aggregation import AggregationRule
from pausefl_server.model.optimizers import Optimizer
from pausefl_server.selection import Policy

class Short(Policy):
    def select(self, context): ...

class Long(Policy):
    def select(self, state, context, more): ...

class Named(Policy):
    def select(self, state, context, *, more): ...

class Held(Policy):
    select = None

class Later(Policy):
    async def select(self, state, context): ...

class Blind(Policy):
    def observe(self, state, record): ...
    def select(self, state, context): ...

class Rule(AggregationRule):
    def combine(self, updates): ...

class Step(Optimizer):
    def step(self, theta, change): ...

class Start(Optimizer):
    def start(self): ...
    def step(self, theta, change, state): ...

class Examples(Behaviour):
    def examples(self, examples): ...

class Method(TrainingMethod):
    def loss(self, model, batch): ...

def with_a_word(method):
    @wraps(method)
    def wrapper(self, *arguments):
        return method(self, "word", *arguments)
    return wrapper

class Fit(Policy):
    def start(self, first=1): ...
    @staticmethod
    def observe(before, seen, clients): ...
    @classmethod
    def inspect(cls, *what): ...
    @with_a_word
    def select(self, word, state, context): ...
    def added(self): ...
    def _step(self): ...
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "misfits", raising=False)
    (tmp_path / "misfits.py").write_text(MODULE)
    return tmp_path / "misfits.py"


@pytest.mark.parametrize(
    ("registry", "name", "message"),
    [
        (POLICIES, "Short", "its `select` must take (state, context); takes (context) (FILE:11)"),
        (POLICIES, "Long", "its `select` must take (state, context); takes (state, context, more) (FILE:14)"),
        (POLICIES, "Named", "its `select` must take (state, context); takes (state, context, *, more) (FILE:17)"),
        (POLICIES, "Held", "its `select` must be a method; is of type NoneType"),
        (POLICIES, "Later", "its `select` must be a method; is a coroutine"),
        (POLICIES, "Blind", "its `observe` must take (state, record, table); takes (state, record) (FILE:26)"),
        (RULES, "Rule", "its `combine` must take (updates, weights); takes (updates) (FILE:30)"),
        (SERVER_OPTIMIZERS, "Step", "its `step` must take (theta, change, state); takes (theta, change) (FILE:33)"),
        (SERVER_OPTIMIZERS, "Start", "its `start` must take (model_size); takes () (FILE:36)"),
        (BEHAVIOURS, "Examples", "its `examples` must take (examples, classes, draw); takes (examples) (FILE:40)"),
        (TRAINING_METHODS, "Method", "its `loss` must take (model, batch, task); takes (model, batch) (FILE:43)"),
    ],
)
def test_a_method_that_cannot_be_called_is_refused(file: Path, registry: Registry, name: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        registry.find(f"misfits:{name}", "some.key")
    assert str(refused.value) == f'some.key = "misfits:{name}": {message.replace("FILE", str(file))}'


def test_names_and_wrappers_of_ones_own_are_taken(file: Path) -> None:
    assert POLICIES.find("misfits:Fit", "some.key").__module__ == file.stem


def test_pausefl_validate_refuses_it(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["validate", "demo", "--set", "selection.policy=misfits:Short"])
    assert re.fullmatch(r"pausefl: .*misfits:Short\": its `select` must take .*\n", capsys.readouterr().err)
