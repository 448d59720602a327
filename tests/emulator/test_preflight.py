"""`pausefl validate` finds what a run would find only once its processes have started."""

from collections.abc import Callable
from pathlib import Path

import pytest

import pausefl
from pausefl.cli import main
from pausefl.experiment.loading import parse_experiment
from pausefl.runtime.evaluator import preflight
from pausefl.runtime.evaluator.preflight import try_out
from pausefl_proto.errors import ConfigError, PauseflError
from pausefl_server.monitoring.noise import NOISE_REMEDY

PLUGINS = """
import sys
import numpy as np
from torch import nn
from pausefl_client.data.datasets import Dataset, Examples
from pausefl_client.training.tasks import Classification, Regression

def no_data(seed):
    raise RuntimeError("the disk is empty")

def misshapen(input_shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(7, classes))

def only_inputs(input_shape):
    return nn.Flatten()

three_outputs = lambda input_shape, classes: nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
one_output = lambda input_shape, classes: nn.Linear(4, 1)
no_parameters = lambda input_shape, classes: nn.Flatten()
frozen = lambda input_shape, classes: nn.Sequential(nn.Flatten(), nn.Linear(64, classes)).requires_grad_(False)

class Nowhere(nn.Module):
    def __init__(self, input_shape, classes):
        super().__init__()
        self.linear = nn.Linear(64, classes)

    def forward(self, inputs):
        return self.linear(inputs.flatten(1)) * float("nan")

class Nothing(Nowhere):
    def forward(self, inputs):
        pass

class Unrated(Classification):
    def score(self, outputs, targets):
        pass

class Averaged(Classification):
    def score(self, outputs, targets):
        return super().score(outputs, targets).mean()

class NaN(Classification):
    sound = 0  # so many times

    def score(self, outputs, targets):
        self.sound -= 1
        return super().score(outputs, targets) * (1.0 if self.sound >= 0 else float("nan"))

class LaterNaN(NaN):
    sound = 2  # before any training

class Error(Regression):
    metric = "MAE"
    factor = 1.0

    def score(self, outputs, targets):
        return self.factor * (outputs.reshape(targets.shape) - targets).abs()

class SmallError(Error):
    factor = 0.001

class Negated(Error):
    factor = -1.0

class Inverse(Regression):
    def score(self, outputs, targets):
        return 1 / (1 + (outputs.reshape(targets.shape) - targets).abs())

def data(task, classes=2, inputs=1.0):
    "A hundred examples of a task, whose labels are numbers where there is one class."
    targets = np.arange(100) % 2 if classes == 2 else np.arange(100, dtype=np.float32)
    examples = Examples(np.full((100, 4), inputs, np.float32), targets)
    return Dataset("own", examples, examples, examples, classes=classes, task=task)

def no_seed():
    return data(Classification())

def two_labels_of_one_class(seed):
    examples = no_seed().train
    return Dataset("own", examples, examples, examples, classes=1, task=Classification())

exiting = lambda seed: sys.exit("no licence")
wrong_kind = lambda seed: 3
not_numbers = lambda seed: data(Classification(), inputs=np.nan)
unrated = lambda seed: data(Unrated())
averaged = lambda seed: data(Averaged())
nan = lambda seed: data(NaN())
later_nan = lambda seed: data(LaterNaN())
error = lambda seed: data(Error(1.0), classes=1)
small_error = lambda seed: data(SmallError(1.0), classes=1)
negated = lambda seed: data(Negated(1.0), classes=1)
inverse = lambda seed: data(Inverse(1.0), classes=1)
"""


@pytest.fixture
def here(tmp_path: Path, own_module: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder without data, with factories in the module `tried_out`."""
    own_module("tried_out", PLUGINS)
    monkeypatch.setenv("PAUSEFL_DATA", str(tmp_path))
    return tmp_path


def found(*settings: str) -> str:
    """What is wrong with the default experiment once it has these settings."""
    with pytest.raises(PauseflError) as caught:
        try_out(parse_experiment("", settings), pytest.fail)
    return str(caught.value)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("workload.dataset=mnist", "fetch it with: pausefl data mnist"),
        ("workload.examples=9999", "workload.examples = 9999: must be from 1 to the 1200 training examples"),
        ('workload.partition={kind="dominant-label", dominant_share=0.01}', "dominant_share = 0.01: must be from 1/10"),
        ("workload.partition=by-client", "the data set does not say whose its examples are"),
        ("workload.dataset=tried_out:no_data", "the disk is empty"),
        ("workload.dataset=tried_out:exiting", "SystemExit: no licence"),
        ("workload.dataset=tried_out:wrong_kind", "returned int, not a Dataset"),
        ("workload.model=tried_out:misshapen", "one training step and one evaluation failed: RuntimeError: mat1"),
        ("workload.model=tried_out:missing", "cannot be imported"),
        ("workload.model=tried_out:three_outputs", ": gives 3 outputs, and the data set has 10 classes"),
        ("workload.model=tried_out:Nothing", ": must return a tensor of outputs; returned NoneType"),
        ("workload.model=tried_out:Nowhere", ": its loss before any training is nan; must be finite"),
        ("workload.learning_rate=1e30", "loss after one training step is not finite; workload.learning_rate = 1e+30"),
        ("workload.dataset=tried_out:not_numbers", ": holds inputs that are not finite"),
        ("workload.dataset=tried_out:unrated", ": Unrated.score must return a tensor; returned NoneType"),
        ("workload.dataset=tried_out:averaged", "Averaged.score must return one value for each thing predicted; ret"),
        ("workload.dataset=tried_out:nan", "of NaN before any training is nan on average; must be finite"),
        ("workload.dataset=tried_out:later_nan", "LaterNaN after one training step is nan on average; must be finite"),
        ("workload.dataset=tried_out:error", 'the score "MAE" of Error before any training is '),
        ("workload.dataset=tried_out:small_error", "of an error, return 1/(1 + error)"),
        ("workload.dataset=tried_out:negated", "of Negated gives 0 for outputs that equal their targets"),
        ("workload.model=tried_out:no_parameters", 'workload.model = "tried_out:no_parameters": has no parameters to'),
        ("workload.model=tried_out:frozen", 'workload.model = "tried_out:frozen": has no parameters to train'),
    ],
)
def test_what_a_run_would_fail_at_is_said_in_one_line(setting: str, message: str) -> None:
    said = found(setting)
    assert message in said
    assert "\n" not in said


def test_a_learning_rate_that_is_too_great_is_bad_input(tmp_path: Path) -> None:
    """A search refuses that setting and goes on; a sweep promises no way on, as the experiment stays what it is."""
    settings = {"experiment.clock": "virtual", "workload.learning_rate": 1e30, "workload.step_s": 0.01}
    with pytest.raises(ConfigError, match=r"= 1e\+30 may be too great$"):
        pausefl.run(pausefl.load("demo", settings), tmp_path / "run", progress=False)


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        (["workload.dataset=tried_out:no_seed"], "def no_seed"),
        (["workload.model=tried_out:only_inputs"], "def only_inputs"),
        (["workload.dataset=tried_out:no_seed", "workload.model=tried_out:misshapen"], "def no_seed"),
        (["workload.model=tried_out:misshapen"], "def misshapen"),
        (["workload.dataset=tried_out:two_labels_of_one_class", "workload.model=tried_out:one_output"], ""),
    ],
)
def test_a_place_is_named_only_where_the_code_that_failed_is_known(settings: list[str], place: str, here: Path) -> None:
    """No frame of it is left where a function takes other arguments, or where torch's own layers find others."""
    lines = PLUGINS.splitlines()
    number = next((i for i, line in enumerate(lines, start=1) if place and line.startswith(f"{place}(")), 0)
    said = found(*settings)
    assert said.endswith(f" ({here / 'tried_out.py'}:{number})") if place else "tried_out.py" not in said, said


def test_a_sound_experiment_passes(here: Path) -> None:
    try_out(parse_experiment(""), pytest.fail)
    try_out(parse_experiment("", ["workload.dataset=tried_out:inverse", "workload.learning_rate=1e-3"]), pytest.fail)
    try_out(parse_experiment("", ["workload.model=synthetic", "workload.dataset=mnist"]), pytest.fail)  # without data
    assert [path.name for path in here.iterdir() if path.suffix != ".py"] in ([], ["__pycache__"])


def test_noise_that_will_swamp_a_model_is_announced() -> None:
    settings = ["clients.count=12", "selection.m=3", "experiment.rounds=300", "workload.model=synthetic"]
    (line,) = try_out(parse_experiment("", [*settings, "privacy.epsilon_budget=40"]), pytest.fail)
    assert line.startswith("noise is 1.3 times the clip bound in a client's release 1, and 25 times in release 75, its")
    assert line.endswith(NOISE_REMEDY)
    (line,) = try_out(parse_experiment("", [*settings, "privacy.epsilon_floor=1.0"]), pytest.fail)
    assert NOISE_REMEDY not in line


@pytest.mark.parametrize(
    ("key", "value"),
    [("tls.ca", "gone.pem"), ("admission.tokens", "gone.txt"), ("admission.token", "{client_id}.token")],
)
def test_files_of_keys_and_tokens_are_read(key: str, value: str) -> None:
    file = value.format(client_id="client-000")
    assert found(f"{key}={value}") == f'{key} = "{file}": cannot be read (No such file or directory)'


def test_a_machine_may_hold_the_token_of_one_client_alone(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(here)
    (here / "client-003.token").write_text("secret\n")
    said: list[str] = []
    try_out(parse_experiment("", ["clients.count=5", "admission.token={client_id}.token"]), said.append)
    missing = 'admission.token = "client-000.token": cannot be read (No such file or directory)'
    assert said == [f"4 of 5 clients cannot run here: {missing}"]


def test_without_torch_it_says_what_it_has_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "is_installed", lambda extra: extra != "client")
    said: list[str] = []
    try_out(parse_experiment(""), said.append)
    assert said == ['data and model were not tried: that needs pip install "pausefl[client]"']


def test_validate_prints_the_experiment_and_ends_with_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        main(["validate", "demo", "--set", "clients.count=1500"])
    printed = capsys.readouterr()
    assert "count = 1500" in printed.out
    (line,) = printed.err.splitlines()
    assert line.startswith("pausefl: clients.count = 1500: must be from 1 to the 1200 training examples")
