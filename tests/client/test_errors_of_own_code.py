"""Users' code: an error becomes one line with its place, and unsuitable code is refused before a run."""

import asyncio
import importlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pausefl.experiment.population.availability import AVAILABILITIES
from pausefl.experiment.population.behaviours import BEHAVIOURS
from pausefl.experiment.population.simulated_drifts import DRIFTS
from pausefl_client.data.partition import PARTITIONERS
from pausefl_client.jobs import computed
from pausefl_client.registries import TRAINING_METHODS
from pausefl_process.plugins import errors_of_own_code, with_place
from pausefl_process.registry import Registry
from pausefl_proto.errors import ConfigError, PauseflError
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_server.model.aggregation import RULES
from pausefl_server.model.optimizers import SERVER_OPTIMIZERS
from pausefl_server.rounds.preparation import off_loop
from pausefl_server.selection import POLICIES
from rigs.session import SCHEDULE, SessionRig, welcomed

OWN = """
def first():
    return next(x for x in () if x)

def asked():
    from concurrent.futures import Future
    future = Future()
    future.cancel()
    future.result()

def cancelled():
    from asyncio import CancelledError
    raise CancelledError

class Mute(Exception):
    def __str__(self):
        return self.args[0]

def mute():
    raise Mute(3)

def several():
    raise ExceptionGroup("two went wrong", [ValueError("one"), ValueError("other")])

from dataclasses import dataclass

@dataclass(frozen=True)
class Frozen:
    turns: int = 0

def changed():
    Frozen().turns = 1

def broken():
    raise ValueError("in one line,\\n  then another")
"""
WAITED_S = 20.0
NOT_HELD = [
    ("first", "StopIteration (FILE:3)"),
    ("asked", "CancelledError (FILE:9)"),
    ("cancelled", "CancelledError (FILE:13)"),
]
"""Names of functions, and the expected message. asyncio futures cannot hold what these functions raise."""


@pytest.fixture
def own(own_module: Callable[[str, str], Path]) -> ModuleType:
    """A module as a user may write it. Its errors come from lines 3, 9, 13, 20, 23, 32 and 35."""
    own_module("own_errors", OWN)
    return importlib.import_module("own_errors")


async def awaited(function: Any) -> Any:
    """The function's result. Python turns a StopIteration that leaves a coroutine into a RuntimeError."""
    return function()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("first", "StopIteration (FILE:3)"),
        ("broken", "ValueError: in one line, then another (FILE:35)"),
        ("mute", "Mute: <exception str() failed> (FILE:20)"),
        ("several", "ExceptionGroup: two went wrong (2 sub-exceptions) (FILE:23)"),
        ("changed", "FrozenInstanceError: cannot assign to field 'turns' (FILE:32)"),
    ],
)
@pytest.mark.parametrize("is_awaited", [False, True])
def test_an_error_is_one_line_with_its_place(own: ModuleType, name: str, said: str, is_awaited: bool) -> None:
    function = getattr(own, name)
    with pytest.raises(PauseflError) as told, errors_of_own_code():
        asyncio.run(awaited(function)) if is_awaited else function()
    assert str(told.value) == said.replace("FILE", str(own.__file__))


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("side", ["server", "client"])
@pytest.mark.parametrize(("name", "said"), NOT_HELD)
async def test_each_side_learns_of_any_error(own: ModuleType, name: str, said: str, side: str, at_once: bool) -> None:
    function = getattr(own, name)
    with ThreadPoolExecutor(1) as threads, pytest.raises(RuntimeError) as error:
        async with asyncio.timeout(WAITED_S):
            if side == "server":
                await off_loop(at_once, function)
            else:
                await computed(None if at_once else threads, function)
    assert with_place(error.value) == said.replace("FILE", str(own.__file__))


@pytest.mark.parametrize("error", [IndexError, PauseflError, ConfigError])
async def test_in_a_private_run_an_error_of_the_trainers_is_not_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: type[Exception]
) -> None:
    """The error may quote private data: "Target 12 is out of bounds" contains a label."""
    rig = SessionRig(ledger_in=tmp_path)
    rig.trainer.fails_in = {1: error("Target 12 is out of bounds")}
    async with rig.welcomed() as stream:
        refusal = await stream.refusal(rig.model, 1, SCHEDULE)
    assert (refusal.status, refusal.reason) == (pb.STATUS_FAILED, "it failed at the job; its own log says why")
    assert "Target 12 is out of bounds" in caplog.text


async def test_what_stops_a_ledger_is_told_without_its_path(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with welcomed(ledger_in=tmp_path) as (rig, stream):
        rig.ledger.close()
        refusal = await stream.refusal(rig.model, 1, SCHEDULE)
    assert (refusal.status, refusal.reason) == (pb.STATUS_FAILED, "its ledger takes no release; its own log says why")
    assert str(tmp_path) in caplog.text


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

class Examples(Behaviour):
    def examples(self, examples): ...

class Method(TrainingMethod):
    def loss(self, model, batch): ...

class Nights:
    def off(self, client_id, rounds, rng): ...

class Turns:
    def on(self, client_id, rounds): ...

class Rows:
    def deal(self, dealt): ...

class Drift:
    def sample(self, rng, n): ...

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
def file(own_module: Callable[[str, str], Path]) -> Path:
    return own_module("misfits", MODULE)


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
        (BEHAVIOURS, "Examples", "its `examples` must take (examples, classes, draw); takes (examples) (FILE:36)"),
        (TRAINING_METHODS, "Method", "its `loss` must take (model, batch, task); takes (model, batch) (FILE:39)"),
        (AVAILABILITIES, "Nights", "has no method `on`"),
        (AVAILABILITIES, "Turns", "its `on` must take (client_id, rounds, rng); takes (client_id, rounds) (FILE:45)"),
        (PARTITIONERS, "Rows", "its `deal` must take (dealt, rng); takes (dealt) (FILE:48)"),
        (DRIFTS, "Drift", "has no method `share_up_to`"),
    ],
)
def test_a_method_that_cannot_be_called_is_refused(file: Path, registry: Registry, name: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        registry.find(f"misfits:{name}", "some.key")
    assert str(refused.value) == f'some.key = "misfits:{name}": {message.replace("FILE", str(file))}'


def test_names_and_wrappers_of_ones_own_are_taken(file: Path) -> None:
    assert POLICIES.find("misfits:Fit", "some.key").__module__ == file.stem
