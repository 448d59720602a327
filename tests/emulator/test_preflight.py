"""Faults that would fail a run are found before it and named in one line, also those in users' files."""

import gzip
import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import pausefl
from pausefl.cli import main
from pausefl.experiment.experiment import parse_experiment
from pausefl.runtime.evaluator import preflight
from pausefl.runtime.evaluator.preflight import try_out
from pausefl_proto.errors import ConfigError, PauseflError
from pausefl_server.monitoring.noise import NOISE_REMEDY

PLUGINS = """
import sys
from dataclasses import replace
import numpy as np
from torch import nn
from pausefl_client.data.datasets import Dataset, Examples
from pausefl_client.training.tasks import Classification, Regression

def no_data(seed):
    raise RuntimeError("the disk is empty")

def misshapen(input_shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(7, classes))

class Bare(nn.Module):
    def __init__(self):
        super().__init__()

def only_inputs(input_shape):
    return nn.Flatten()

three_outputs = lambda input_shape, classes: nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
one_output = lambda input_shape, classes: nn.Linear(4, 1)
KEPT = nn.Linear(64, 10)
kept = lambda input_shape, classes: nn.Sequential(nn.Flatten(), KEPT)
frozen = lambda input_shape, classes: nn.Sequential(nn.Flatten(), nn.Linear(64, classes)).requires_grad_(False)

class Nowhere(nn.Module):
    def __init__(self, input_shape, classes):
        super().__init__()
        self.linear = nn.Linear(64, classes)

    def forward(self, inputs):
        return self.linear(inputs.flatten(1)) * float("nan")

class Nothing(Nowhere):
    forward = lambda self, inputs: None

class Unrated(Classification):
    score = lambda self, outputs, targets: None

class Averaged(Classification):
    score = lambda self, outputs, targets: Classification.score(self, outputs, targets).mean()

class Unreduced(Classification):
    loss = lambda self, outputs, targets: nn.functional.cross_entropy(outputs, targets, reduction="none")

logits_of = lambda outputs: outputs[1] if type(outputs) is tuple else outputs if outputs.shape[1] == 3 else outputs.T

class Rare:
    "Rare labels, several for each example; a logit of 0 predicts one. The model may return a tuple."
    metric = "hits"

    def loss(self, outputs, targets):
        return nn.functional.binary_cross_entropy_with_logits(logits_of(outputs), targets)

    def score(self, outputs, targets):
        return ((logits_of(outputs) >= 0) == (targets > 0)).float()

class Twice(nn.Linear):
    def __init__(self, input_shape, classes):
        super().__init__(4, classes)

    def forward(self, inputs):
        return inputs, super().forward(inputs)
class Turned(Twice):
    forward = lambda self, inputs: nn.Linear.forward(self, inputs).T
class Rolled(Twice):
    forward = lambda self, inputs: nn.Linear.forward(self, inputs.roll(1, 0))

def rare(seed):
    inputs = np.eye(4, dtype=np.float32)[np.arange(80) % 4]
    examples = Examples(inputs, inputs[:, :3])
    return Dataset("rare", examples, examples, examples, classes=3, task=Rare())

class NaN(Classification):
    sound = 0  # so many times

    def score(self, outputs, targets):
        self.sound -= 1
        return super().score(outputs, targets) * (1.0 if self.sound >= 0 else float("nan"))

class LaterNaN(NaN):
    sound = 8  # before any training

class Wrong(Classification):
    score = lambda self, outputs, targets: 1 - Classification.score(self, outputs, targets)

class Error(Regression):
    metric = "MAE"
    factor = 1.0

    def score(self, outputs, targets):
        return self.factor * (outputs.reshape(targets.shape) - targets).abs()

class Negated(Error):
    factor = -1.0

class Counts(Regression):  # models give the logarithm of the number that they expect
    loss = lambda self, outputs, targets: nn.functional.poisson_nll_loss(outputs[:, 0], targets)
    score = lambda self, outputs, targets: Regression.score(self, outputs.exp(), targets)

class Broadcast(Regression):  # with outputs of (n, 1) and targets of (n,)
    score = lambda self, outputs, targets: 1 / (1 + (outputs - targets).abs())

class Summed(Classification):
    loss = lambda self, outputs, targets: nn.functional.cross_entropy(outputs, targets, reduction="sum")

class Centred(Classification):
    __init__ = lambda self: vars(self).update(head=nn.Linear(2, 2))
    loss = lambda self, outputs, targets: Classification.loss(self, self.head(outputs), targets)

class Paired(Regression):  # every output with every target
    loss = lambda self, outputs, targets: (outputs - targets).abs().mean()

class Weary(Classification):
    loss = lambda self, outputs, targets: Classification.loss(self, outputs, targets) if len(targets) < 50 else 1 / 0

class Inverse(Regression):
    score = lambda self, outputs, targets: 1 / (1 + (outputs.reshape(targets.shape) - targets).abs())

def data(task, classes=2, inputs=1.0):
    "A hundred examples of a task, whose labels are numbers where there is one class."
    targets = np.arange(100) % 2 if classes == 2 else np.arange(100, dtype=np.float32)
    examples = Examples(np.full((100, 4), inputs, np.float32), targets)
    return Dataset("own", examples, examples, examples, classes=classes, task=task)

HOLE = np.where(np.arange(400).reshape(100, 4) == 30, np.nan, 1.0)

def no_seed():
    return data(Classification())

def shuffled(seed):
    found = data(None)
    order = np.random.default_rng().permutation(100)
    return replace(found, validation=found.train.take(order[:50]), test=found.train.take(order[50:]))

def late_label(seed):
    found = data(Classification())
    labels = np.where(np.arange(100) == 70, 2, found.test.labels)
    return replace(found, test=replace(found.test, labels=labels))

def hole_in_targets(seed):
    found = data(Regression(1.0), classes=1)
    return replace(found, test=replace(found.test, labels=HOLE[:, 2].astype(np.float32)))

def two_labels_of_one_class(seed):
    examples = no_seed().train
    return Dataset("own", examples, examples, examples, classes=1, task=Classification())

exiting = lambda seed: sys.exit("no licence")
not_numbers = lambda seed: data(Classification(), inputs=np.nan)
one_hole = lambda seed: replace(data(Classification()), test=data(Classification(), inputs=HOLE).test)
unrated = lambda seed: data(Unrated())
averaged = lambda seed: data(Averaged())
unreduced = lambda seed: data(Unreduced())
nan = lambda seed: data(NaN())
later_nan = lambda seed: data(LaterNaN())
wrong = lambda seed: data(Wrong())
error = lambda seed: data(Error(1.0), classes=1)
negated = lambda seed: data(Negated(1.0), classes=1)
broadcast = lambda seed: data(Broadcast(1.0), classes=1)
weary = lambda seed: data(Weary())
centred = lambda seed: data(Centred())
summed = lambda seed: data(Summed())
paired = lambda seed: data(Paired(1.0), classes=1)
wider = lambda seed: replace(data(None), test=Examples(np.ones((9, 5), np.float32), np.zeros(9, np.int64)))
wide = lambda seed: data(Regression(1700.0), classes=1)
inverse = lambda seed: data(Inverse(1.0), classes=1)
counts = lambda seed: data(Counts(1e4), classes=1)
"""


@pytest.fixture
def here(tmp_path: Path, own_module: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder without data, with factories in the module `tried_out`."""
    own_module("tried_out", PLUGINS)
    monkeypatch.setenv("PAUSEFL_DATA", str(tmp_path))
    return tmp_path


def found(*settings: str) -> str:
    """The fault found in the default experiment with these settings."""
    with pytest.raises(PauseflError) as caught:
        try_out(parse_experiment("", settings), pytest.fail)
    return str(caught.value)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"epochs": 60, "max_steps": 100},
            ["max_steps = 100 ends each round: workload.epochs = 60 is about 120 steps"],
        ),
        ({"epochs": 60, "max_steps": 120}, []),
        ({"dataset": "tried_out:rare", "model": "tried_out:Rolled"}, ["in reverse order: outputs may not lie as targ"]),
        ({"dataset": "tried_out:centred"}, ["Centred has parameters, which nothing trains; hold them in the model"]),
    ],
)
def test_what_is_in_doubt_is_told(settings: dict[str, object], said: list[str]) -> None:
    told = list[str]()
    try_out(parse_experiment("", {f"workload.{key}": value for key, value in settings.items()}), told.append)
    assert all(part in text for part, text in zip(said, told, strict=True))


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("workload.dataset=mnist", "fetch it with: pausefl data mnist"),
        ('workload.partition={kind="dominant-label", dominant_share=0.01}', "dominant_share = 0.01: must be from 1/10"),
        ("workload.partition=by-client", "the data set does not say whose its examples are"),
        ("workload.dataset=tried_out:no_data", "the disk is empty"),
        ("workload.dataset=tried_out:exiting", "SystemExit: no licence"),
        ("workload.model=tried_out:misshapen", "one training step and one evaluation failed: RuntimeError: mat1"),
        ("workload.model=tried_out:three_outputs", ": gives 3 outputs, and the data set has 10 classes"),
        ("workload.model=tried_out:Nothing", "a tensor of outputs; returned NoneType, which needs a data set with"),
        ("workload.model=tried_out:Nowhere", ": its loss before any training is nan; must be finite"),
        ("workload.learning_rate=1e30", "loss after one training step is not finite; workload.learning_rate = 1e+30"),
        ("workload.dataset=tried_out:not_numbers", ": of client-0"),
        ("workload.dataset=tried_out:hole_in_targets", ": test.labels[7] is nan: must be finite"),
        ("workload.dataset=tried_out:late_label", ": test has a label 2; must be below 2"),
        ("workload.dataset=tried_out:shuffled", "is another each time it is made; take all chance from its seed"),
        ("workload.dataset=tried_out:one_hole", ": test.inputs[7, 2] is nan: must be finite"),
        ("workload.dataset=tried_out:unrated", ": Unrated.score must return a tensor; returned NoneType"),
        ("workload.dataset=tried_out:averaged", "Averaged.score must return one value for each thing predicted, to be"),
        ("workload.dataset=tried_out:broadcast", "to be averaged; returned one of shape (20, 20)"),
        ("workload.dataset=tried_out:summed", "loss of Summed is twice as great for a batch that comes twice; must"),
        ("workload.dataset=tried_out:paired", ": outputs (20, 1) and targets (20,) broadcast; reshape one"),
        ("workload.dataset=tried_out:wider", ": 2 of test, inputs of shape (2, 5), cannot be evaluated: RuntimeErr"),
        ("workload.model=tried_out:kept", '"tried_out:kept": 1.weight is the same object in each call; make a new one'),
        ("workload.dataset=tried_out:unreduced", "Unreduced.loss of the data set's task, must return a scalar tensor"),
        ("workload.dataset=tried_out:nan", "of NaN before any training is nan on average; must be finite"),
        ("workload.dataset=tried_out:later_nan", "LaterNaN after one training step is nan on average; must be finite"),
        ("workload.dataset=tried_out:wide", ": Regression.variance = 1700; its targets' is 833.25"),
        ("workload.dataset=tried_out:error", 'the score "MAE" of Error before any training is '),
        ("workload.dataset=tried_out:negated", "of Negated gives 0 for outputs that equal their targets"),
        ("workload.dataset=tried_out:wrong", "of Wrong gives 0 for outputs that equal their targets"),
        ("workload.model=tried_out:frozen", 'workload.model = "tried_out:frozen": has no parameters to train'),
        ("tls.ca=gone.pem", 'tls.ca = "gone.pem": cannot be read (No such file or directory)'),
        ("admission.tokens=gone.txt", 'admission.tokens = "gone.txt": cannot be read (No such file or directory)'),
        ("admission.token={client_id}.token", 'admission.token = "client-000.token": cannot be read (No such file'),
    ],
)
def test_what_a_run_would_fail_at_is_said_in_one_line(setting: str, message: str) -> None:
    said = found(setting)
    assert message in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("learning_rate", 1e30, r"= 1e\+30 may be too great$"),
        ("dataset", "tried_out:not_numbers", "validation.inputs.0, 0. is nan: must be finite$"),
        ("dataset", "tried_out:shuffled", "is another each time it is made; take all chance from its seed$"),
        ("dataset", "tried_out:weary", r'"tried_out:weary": an evaluation failed: ZeroDivisionError: .*py:\d+\)'),
    ],
)
def test_what_no_step_can_be_trained_with_is_bad_input(here: Path, key: str, value: object, message: str) -> None:
    """It is bad input, so a search goes on with other settings, and a sweep offers no resuming: it would fail again."""
    settings = {"experiment.clock": "virtual", f"workload.{key}": value, "workload.step_s": 0.01}
    with pytest.raises(PauseflError, match=message) as caught:
        pausefl.run(pausefl.load("demo", settings), here / "run", progress=False)
    assert isinstance(caught.value, ConfigError) == (value != "tried_out:weary")  # a run may go on with another task


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        (["workload.dataset=tried_out:no_seed"], "def no_seed"),
        (["workload.model=tried_out:only_inputs"], "def only_inputs"),
        (["workload.model=tried_out:Bare"], "    def __init__"),
        (["workload.dataset=tried_out:no_seed", "workload.model=tried_out:misshapen"], "def no_seed"),
        (["workload.model=tried_out:misshapen"], "def misshapen"),
        (["workload.dataset=tried_out:two_labels_of_one_class", "workload.model=tried_out:one_output"], ""),
    ],
)
def test_a_place_is_named_only_where_the_code_that_failed_is_known(settings: list[str], place: str, here: Path) -> None:
    """The traceback has no frame of the user's code if its arguments are wrong, or if torch's own layers fail."""
    lines = PLUGINS.splitlines()
    number = next((i for i, line in enumerate(lines, start=1) if place and line.startswith(f"{place}(")), 0)
    said = found(*settings)
    assert said.endswith(f" ({here / 'tried_out.py'}:{number})") if place else "tried_out.py" not in said, said


def test_a_sound_experiment_passes(here: Path) -> None:
    try_out(parse_experiment(""), pytest.fail)
    for own in ("inverse", "counts"):
        try_out(parse_experiment("", [f"workload.dataset=tried_out:{own}", "workload.learning_rate=1e-3"]), pytest.fail)
    for model in ("mlp", "tried_out:Twice", "tried_out:Turned"):
        try_out(parse_experiment("", ["workload.dataset=tried_out:rare", f"workload.model={model}"]), pytest.fail)
    try_out(parse_experiment("", ["workload.model=synthetic", "workload.dataset=mnist"]), pytest.fail)  # without data
    assert [path.name for path in here.iterdir() if path.suffix != ".py"] in ([], ["__pycache__"])


def test_noise_that_swamps_a_model_is_told_and_what_was_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ["clients.count=12", "selection.m=3", "experiment.rounds=300", "workload.model=synthetic"]
    (line,) = try_out(parse_experiment("", [*settings, "privacy.epsilon_budget=40"]), pytest.fail)
    assert line.startswith("noise is 1.3 times the clip bound in a client's release 1, and 25 times in release 75, its")
    assert line.endswith(NOISE_REMEDY)
    for more, words in (
        (("server.mode=asynchronous", "asynchronous.buffer=6"), "in release 150, its"),  # each step asks six clients
        (("selection.policy=all",), " 80,000 times in release 300, its"),  # each round asks all of them, whatever m is
        (("privacy.epsilon_budget=2",), f"equally often; {NOISE_REMEDY}"),  # too much from the start
        (("privacy.noise_to_clip_max=5",), "in release 58, its last if all are chosen equally often\n"),  # then retired
    ):
        (line,) = try_out(parse_experiment("", [*settings, *more]), pytest.fail)
        assert words in f"{line}\n"
    monkeypatch.setattr(preflight, "is_installed", lambda extra: extra != "client")
    said: list[str] = []
    try_out(parse_experiment(""), said.append)
    assert said == ['data and model were not tried: that needs pip install "pausefl[client]"']


def test_a_machine_may_hold_the_token_of_one_client_alone(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(here)
    (here / "client-003.token").write_text("secret\n")
    said: list[str] = []
    try_out(parse_experiment("", ["clients.count=5", "admission.token={client_id}.token"]), said.append)
    missing = 'admission.token = "client-000.token": cannot be read (No such file or directory)'
    assert said == [f"4 of 5 clients cannot run here: {missing}"]


EXPERIMENT = """
[experiment]
rounds = 2
clock = "virtual"
[clients.groups.phones]
count = 2
[selection]
m = 1
[workload]
model = "synthetic"
"""


def complaint(capsys: pytest.CaptureFixture[str], folder: Path, *arguments: str) -> str:
    """The only line that a command prints about a file, without the file's name; the command must leave no files."""
    before = sorted(folder.rglob("*"))
    with pytest.raises(SystemExit) as ended:
        main([*arguments])
    said = capsys.readouterr()
    (line,) = said.err.splitlines()
    assert (ended.value.code, said.out) == (2, "")
    assert sorted(folder.rglob("*")) == before
    return line.removeprefix(f"pausefl: {folder}/")


def test_validate_prints_nothing_but_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = complaint(capsys, tmp_path, "validate", "demo", "--set", "clients.count=1500")
    assert said.startswith("pausefl: clients.count = 1500: must be from 1 to the 1200 training examples")


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def refused_run(experiment: str | bytes, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The only line that `pausefl run` prints about an experiment in mine.toml."""
    mine = written(folder / "mine.toml", experiment)
    return complaint(capsys, folder, "run", str(mine), "--run-dir", str(folder / "run"))


HEADER = "client,time,seconds\n"
UNANSWERED = {"result": [{"rtt": 1.5}, {"x": "*"}], "prb_id": 1, "timestamp": 1}
SERIES = {"metric": {"instance": "a"}, "values": [[1, "0.1"], [2, "NaN"]]}
LATENCIES: dict[str, tuple[str | bytes, str] | tuple[str | bytes, str, str]] = {
    "nothing": ("", "is empty"),
    "a header alone": (HEADER, "holds no latencies"),
    "lost probes alone": (f"{HEADER}a,1,-\n", "holds no latencies", "--lost=- --timeout-s=5"),
    "one column": ("seconds\n0.1\n", 'line 1 has no column "client" (it has: seconds); say which: --client-column'),
    "a column of another name": (
        "client,time,ms\na,1,231\n",
        'line 1 has no column "seconds" (it has: client, time, ms); say which: --column NAME',
    ),
    "devices": ("device;seconds\na;0,1\n", "(it has: device, seconds); say which: --client-column NAME"),
    "a column twice": ("client,seconds,seconds\na,1,1\n", 'line 1 has 2 columns "seconds"'),
    "decimal commas": (
        f"{HEADER}a,1,0,1\n",
        "line 2 has 4 values and the header 3 names; decimals need a point, or semicolons between",
    ),
    "milliseconds": (
        f"{HEADER}a,1,231\na,2,244\nb,1,812\nb,2,901\n",
        'line 2 has "231" for seconds, and the median is 528, which looks like milliseconds; add --unit ms, or --unit',
    ),
    "a word": (f"{HEADER}a,1,N/A\n", 'line 2 has "N/A" for seconds: must be a number above 0; if its probe was lost, '),
    "decimal commas in quotes": (f'{HEADER}a,1,"0,1"\n', 'line 2 has "0,1" for seconds: must be a number above 0; dec'),
    "below 0": (f"{HEADER}a,1,0.1\na,2,-0.1\n", 'line 3 has "-0.1" for seconds'),
    "infinity": (f"{HEADER}a,1,0.1\na,2,inf\n", 'line 3 has "inf" for seconds: must be a number above 0; if its'),
    "a blank": (
        f"{HEADER}a,1,0.1\n\na,2,\n",
        "line 4 has nothing for seconds: must be a number above 0; if its probe was lost, add --lost '' and --timeout",
    ),
    "a short line": (f"{HEADER}a,1,0.1\na,2\n", "line 3 has nothing for seconds"),
    "a timeout": (f"{HEADER}a,1,timeout\n", "if its probe was lost, add --lost timeout and --timeout-s 5.0"),
    "a timeout of unknown length": (f"{HEADER}a,1,-\n", "line 2 is a lost probe; say how long it was", "--lost=-"),
    "a time that is none": (
        f"{HEADER}a,noon,0.1\n",
        'line 2 has "noon" for time: must be a number or an ISO 8601 date, such as 2026-03-01T10:00:00Z; rows in order',
    ),
    "nobody": (f"{HEADER},1,0.1\n", "line 2 does not say whose latency it is (column client)"),
    "an open quote": (f'{HEADER}"a,1,0.1\nb,2,0.2\n', "line 3 ends a text of several lines: its quotes are not"),
    "a long cell": (f"{HEADER}{'x' * 200_000},1,0.1\n", "cannot be read (line 2: field larger than field limit"),
    "Latin-1": ((HEADER + "Gerät,1,0.1\n").encode("latin-1"), "(line 2, column 4 is no UTF-8; save the file as"),
    "a spreadsheet": (b"PK\x03\x04\x00\x00", "is no text: line 1, column 5 is a zero byte; save it as CSV in UTF"),
    "cut off": (gzip.compress(HEADER.encode() * 99)[:-9], "cannot be read (Compressed file ended before"),
    "damaged": (gzip.compress(HEADER.encode())[:-8] + bytes(8), "cannot be read (CRC check failed)"),
    "no such filter": (HEADER + "\n".join("abcdefghi"), "(there is: a, b, c, d, e, f, g, h, …)", "--filter client=x"),
    "a filter of no column": (f"{HEADER}a,1,0.1\n", 'line 1 has no column "x" (it has: client, time', "--filter x=b"),
    "a filter beside the format's own": (
        "metric_name,timestamp,metric_value,name,status\nvus,1,?,u,200\nhttp_req_duration,1,?,u,200\n",
        'line 3 has "?" for metric_value',
        "--format k6 --filter status=200",
    ),
    "a rate": (
        pickle.dumps({1: {"computation": 52.5, "communication": 5647.6}}),
        'device 1 has no column "communication" (it has: client, computation)',
        "--format fedscale --column communication",
    ),
    "ping": ("PING a (1.2.3.4)", "line 1 is no header of a CSV file; try --format ping"),
    "ping -D": ("[1764201601.1] 64 bytes", "line 1 is no header of a CSV file; try --format ping"),
    "RIPE Atlas": (json.dumps([{"fw": 1}]), "line 1 is no header of a CSV file; try --format ripe-atlas"),
    "iperf3": ('{"start": {}}', "line 1 is no header of a CSV file; try --format iperf3"),
    "Prometheus": ('{"status": "success"}', "line 1 is no header of a CSV file; try --format promethe", "--format k6"),
    "FedScale": (pickle.dumps({1: {}}), "line 1 is no header of a CSV file; try --format fedscale"),
    "k6": ("metric_name,timestamp,metric_value,name\nvus,1,1,u\n", "say which: --column NAME; try --format k6"),
    "locust": ("Timestamp,Name,50%\n1,/a,N/A\n", "say which: --client-column NAME; try --format locu", "--column 50%"),
    "NDT": ("a_TestTime,a_MinRTT,client_IP\n1,2,3\n", "NAME; try --format ndt", "--column a_MinRTT"),
    "WonderNetwork": ('"source","avg","timestamp"\n1,2,3\n', "say which: --column NAME; try --format wondernetwo"),
    "CSV as Prometheus": (
        f"{HEADER}a,1,2\n",
        'is not of the format "prometheus" (line 1, column 1: Expecting value); try --format csv',
        "--format prometheus",
    ),
    "CSV as FedScale": (HEADER, '"fedscale" (is no pickle of plain values (pickle data was trun', "--format fedscale"),
    "broken JSON": ('[{"prb_id": 1,\n  "result" 2}]', "(line 2, column 12: Expecting ':' del", "--format ripe-atlas"),
    "broken JSON of two": ("[]\n{", "(line 2, column 2: Expecting property name", "--format ripe-atlas"),
    "Prometheus as iperf3": ('{\n "status": "success"}', '(no "start" where one was due); try --f', "--format iperf3"),
    "an error of iperf3": ('{"start": {}, "error": "no route to host"}', "(it is an error: no rou", "--format iperf3"),
    "JSON too deep": ("[" * 200_000, 'is not of the format "ripe-atlas" (its parts are of', "--format ripe-atlas"),
    "a lost probe": (json.dumps([UNANSWERED]), "result 2 is a lost probe; say how long it was", "--format ripe-atlas"),
    "no number in JSON": (
        json.dumps({"status": "success", "data": {"result": [SERIES]}}),
        'value 2 has "NaN" for value: must be a number above 0; if its probe was lost, add --lost NaN and --timeout-s',
        "--format prometheus",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LATENCIES)
def test_a_wrong_file_of_latencies(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, line, *options = LATENCIES[name]
    file = written(tmp_path / "fleet.csv", content)
    said = complaint(capsys, tmp_path, "fit-latency", str(file), *" ".join(options).split())
    assert said.startswith("fleet.csv: ")
    assert line in said


def test_a_timeout_is_a_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path / "fleet.csv", f"{HEADER}a,1,lost\n")
    said = complaint(capsys, tmp_path, "fit-latency", str(file), "--lost", "lost", "--timeout-s=-3")
    assert said == "pausefl: timeout_s = -3.0: must be a finite number, above 0"


DELAYS: dict[str, tuple[str, str] | tuple[str, str, str]] = {
    "milliseconds": ("s\n231\n244\n", 'line 2 has "231" for s, and the median is 237.5, which looks like millise'),
    "a blank": ("s\n0.1\n\n''\n", "line 4 has \"''\" for s: must be a number of at least 0"),
    "a timeout": (
        "s\n1\n\ntimeout\n",
        'line 4 has "timeout" for s: must be a number of at least 0; if its probe was lost, add lost = ["timeout"] an',
    ),
    "below 0": ("s\n0.1\n-0.1\n", 'line 3 has "-0.1" for s: must be a number of at least 0'),
    "text over lines": ('s\n"0.1\n0.2"\n', r'line 3 has "0.1\n0.2" for s'),
    "another column": ("rtt\n0.1\n", 'line 1 has no column "s" (it has: rtt); say which: column = "NAME"'),
    "no client": ("c,s\na,1\n,2\n", "line 3 does not say whose latency it is (column c)", ', client_column = "c"'),
    "another format": ('[{"fw": 1}]', 'line 1 is no header of a CSV file; try format = "ripe-atlas"'),
    "no values": ("s\n", "holds no values"),
    "nothing": ("", "is empty"),
}  # fmt: skip


@pytest.mark.parametrize("name", DELAYS)
def test_a_wrong_file_of_delays(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, line, *more = DELAYS[name]
    file = written(tmp_path / "rtt.csv", content)
    delay = f'[latency]\ndelay = {{ kind = "empirical", file = "rtt.csv", column = "s"{"".join(more)} }}\n'
    said = refused_run(EXPERIMENT + delay, tmp_path, capsys)
    assert said.startswith(f'mine.toml: latency.delay.file = "{file}": {line}')


TRACE = "client_id,round,on\n"
IN_SECONDS = ", round_s = 9.0"
TRACES: dict[str, tuple[str | bytes, str] | tuple[str | bytes, str, str]] = {
    "nothing": ("", "is empty"),
    "another column": ("client,round,on\n", 'line 1 has no column "client_id" (it has: client, round, on)'),
    "times": ("client_id,time_s,on\n", 'line 1 has no column "round" (it has: client_id, time_s, on); add round_s'),
    "rounds": (TRACE, 'line 1 has no column "time_s" (it has: client_id, round, on); leave round_s out', IN_SECONDS),
    "no number": (f"{TRACE}phones-000,x,1\n", 'line 2 has "x" for round: must be a number from 1'),
    "round 0": (f"{TRACE}a,2,1\na,0,1\n", 'line 3 has "0" for round: must be a number from 1'),
    "a date": ("client_id,time_s,on\na,2e9,0\n", 'line 2 has "2e9" for time_s: must be a number from 0', IN_SECONDS),
    "a word": (f"{TRACE}phones-000,3,yes\n", 'line 2 has "yes" for on: must be 1 or 0'),
    "a short line": (f"{TRACE}a,3\n", "line 2 has nothing for on: must be 1 or 0"),
    "nobody": ("round,on,client_id\n2,0\n", "line 2 has nothing for client_id: must be the id of a client"),
    "others": (f"{TRACE}other,3,1\n", "names other, which is no client of this experiment"),
    "Latin-1": ("client_id,round,on\nGerät,3,1\n".encode("latin-1"), "cannot be read (line 2, column 4 is no UTF"),
    "FedScale's": (pickle.dumps({1: {}}), "is a trace of FedScale, in seconds; add round_s, how many seconds one"),
    "dates": (pickle.dumps({1: {"active": [2e9], "inactive": []}}), "is no trace of FedScale (ValueError:", IN_SECONDS),
    "code": (pickle.dumps({1: Path()}), "is no trace of FedScale (ValueError: is no pickle of plain valu", IN_SECONDS),
}  # fmt: skip


@pytest.mark.parametrize("name", TRACES)
def test_a_wrong_trace(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, line, *more = TRACES[name]
    file = written(tmp_path / "trace", content)
    availability = f'availability = {{ kind = "trace", path = "trace"{"".join(more)} }}'
    said = refused_run(EXPERIMENT.replace("count = 2", f"count = 2\n{availability}"), tmp_path, capsys)
    assert said.startswith(f'mine.toml: clients.groups.phones.availability.path = "{file}": {line}')


EXPERIMENTS: dict[str, tuple[str | bytes, str]] = {
    "a decimal comma": ("[latency]\ntime_scale = 0,5\n", "not valid TOML: .* \\(at line 2, column 15\\)"),
    "UTF-16": (EXPERIMENT.encode("utf-16"), r"cannot be read \(line 1, column 1 is no UTF-8; save the file as UTF-8\)"),
    "Latin-1": ("# a\n# Gerät\n".encode("latin-1"), r"cannot be read \(line 2, column 6 is no UTF-8; save the file as"),
    "a group's name": ('[clients.groups."Gerät 1.lab"]\ncount = 3\n', "clients.groups: 'Gerät 1.lab' is no name; let"),
    "a client's id": ("[clients]\nids = ['Ærø 1']\n", "clients.ids: 'Ærø 1' is no name; letters, digits, _ and - make"),
    "capitals": ("[workload]\ndataset = 'MNIST'\n", 'workload.dataset = "MNIST": .*did you mean mnist'),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_wrong_experiment(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, line = EXPERIMENTS[name]
    said = refused_run(content, tmp_path, capsys)
    assert re.match(f"mine.toml: {line}", said), said
