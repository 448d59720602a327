"""Local training: a round's result, the trainer's state over restarts, and the memory of a forked process."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from pausefl.bench.images import random_images
from pausefl.experiment.population.behaviours import Behaviour, BehaviourChain, StaleModel
from pausefl_client.data.datasets import Examples, load_dataset
from pausefl_client.data.holdings import Holding
from pausefl_client.privacy.ledger import ReleaseKey
from pausefl_client.training import torch_trainer
from pausefl_client.training.method import TrainingMethod
from pausefl_client.training.methods.fedprox import FedProx
from pausefl_client.training.model_vector import ModelVector
from pausefl_client.training.models import build_model
from pausefl_client.training.synthetic import SyntheticTrainer
from pausefl_client.training.torch_trainer import LocalData, TorchTrainer, dealt_device, normalise, resolve_device
from pausefl_client.training.trainer import TrainingSettings
from pausefl_client.training.trainer_state import TrainerStates
from pausefl_proto.draws import generator
from pausefl_proto.errors import ConfigError, PauseflError
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_server.connections.exchange import statistics_of
from rigs.clock import Clock
from rigs.command import python
from rigs.session import FakeTrainer, SessionRig

CPU = torch.device("cpu")
DIGITS = load_dataset("digits", seed=1)
EXAMPLES = DIGITS.train.take(np.arange(90))


def make_trainer(
    settings: TrainingSettings,
    *,
    examples: Examples = EXAMPLES,
    classes: int = 0,
    seed: int = 1,
    client_id: str = "c1",
    method: TrainingMethod | None = None,
    device: torch.device = CPU,
) -> TorchTrainer:
    model, data = build_model("mlp", DIGITS.input_shape, 10, seed), LocalData(examples, classes)
    return TorchTrainer(model, data, settings, device=device, seed=seed, client_id=client_id, method=method)


THETA = ModelVector(build_model("mlp", DIGITS.input_shape, 10, 1)).values()
SGD = TrainingSettings("sgd", learning_rate=0.1, batch_size=20, epochs=1, max_steps=None)
ADAM = TrainingSettings("adam", learning_rate=0.01, batch_size=20, epochs=1, max_steps=100)


@pytest.mark.parametrize(("classes", "counted"), [(1024, 1024), (1025, 0)])
def test_label_counts_of_any_data_set_are_taken_by_the_server(classes: int, counted: int) -> None:
    result = pb.Result()
    result.statistics.update(make_trainer(SGD, classes=classes).label_counts)
    found = statistics_of(result)
    assert len(found) == counted
    assert list(found) == sorted(found)


def test_one_step_over_all_examples_is_the_gradient() -> None:
    settings = TrainingSettings("sgd", learning_rate=0.1, batch_size=len(EXAMPLES), epochs=1, max_steps=None)
    outcome = make_trainer(settings).train(THETA, round=1)
    model = build_model("mlp", DIGITS.input_shape, 10, 1)
    ModelVector(model).fill(THETA)
    outputs = model(torch.from_numpy(EXAMPLES.inputs / np.float32(127.5) - 1))
    loss = functional.cross_entropy(outputs, torch.from_numpy(EXAMPLES.labels))
    gradient = torch.autograd.grad(loss, list(model.parameters()))
    expected = -0.1 * torch.cat([part.flatten() for part in gradient]).numpy()
    assert outcome.loss == pytest.approx(float(loss.detach()), rel=1e-5)
    assert outcome.update.dtype == np.float32
    np.testing.assert_allclose(outcome.update, expected, atol=1e-7)


def test_how_many_batches_are_gathered_at_a_time_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = TrainingSettings("adam", 0.01, batch_size=20, epochs=3, max_steps=12)
    all_at_once = make_trainer(settings).train(THETA, round=1)
    monkeypatch.setattr(torch_trainer, "gathered_bytes", lambda _: 1)
    one_by_one = make_trainer(settings).train(THETA, round=1)
    assert np.array_equal(all_at_once.update, one_by_one.update)
    assert all_at_once.loss == one_by_one.loss


class _Views(nn.Module):
    """As in many tutorials: `view` after convolutions takes values as torch lays them out by itself, and no others."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.outputs = nn.Conv2d(3, 4, 3), nn.Linear(4 * 15 * 15, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.outputs(functional.max_pool2d(self.convolution(x), 2).view(-1, 4 * 15 * 15))
        return y


def test_a_model_gets_images_as_torch_lays_them_out() -> None:
    images = random_images(1, "test", 40, (3, 32, 32))
    trainer = TorchTrainer(_Views(), LocalData(images), SGD, device=CPU, seed=1, client_id="c1")
    assert np.isfinite(trainer.train(trainer.vector.values(), round=1).loss)


def test_an_update_depends_on_seed_client_and_round_alone_and_leaves_nothing_behind_for_devices_not_in_use() -> None:
    before = len(torch.cuda._queued_calls)
    update = make_trainer(ADAM).train(THETA, round=3).update
    torch.rand(7)
    assert np.array_equal(update, make_trainer(ADAM).train(THETA, round=3).update)
    assert not np.array_equal(update, make_trainer(ADAM).train(THETA, round=4).update)
    assert not np.array_equal(update, make_trainer(ADAM, client_id="c2").train(THETA, round=3).update)
    assert len(torch.cuda._queued_calls) == before


def test_a_new_thread_trains_as_one_that_has_computed_before() -> None:
    """In a new thread, MKL once split the first products (batches of 10) among all cores and changed the sums."""
    torch.set_num_threads(1)  # in this thread, as in clients
    theta, examples = generator(1, "theta").normal(0, 0.2, THETA.size).astype(np.float32), EXAMPLES.take(np.arange(10))
    here = make_trainer(SGD, examples=examples).train(theta, round=1)
    with ThreadPoolExecutor(1) as pool:
        there = pool.submit(make_trainer(SGD, examples=examples).train, theta, round=1).result()
    assert np.array_equal(here.update, there.update)


def test_fedprox_adds_the_gradient_of_the_distance_to_the_rounds_model() -> None:
    """Two steps over all examples, by hand: the first is at the anchor, the second is pulled back by μ(w − θ)."""
    mu, plain = 3.0, TrainingSettings("sgd", 0.1, len(EXAMPLES), 2, None)
    first = make_trainer(TrainingSettings("sgd", 0.1, len(EXAMPLES), 1, None)).train(THETA, round=1).update
    expected = make_trainer(plain).train(THETA, round=1).update - np.float32(0.1 * mu) * first
    trainer = make_trainer(plain, method=FedProx(mu))
    trainer.train(THETA + 1, round=1)  # this earlier model must not be the next round's anchor
    np.testing.assert_allclose(trainer.train(THETA, round=1).update, expected, atol=1e-6)


def test_adam_remembers_the_rounds_before_and_sgd_does_not() -> None:
    for settings, remembers in ((ADAM, True), (SGD, False)):
        fresh, used = make_trainer(settings), make_trainer(settings)
        used.train(THETA, round=1)
        assert np.array_equal(fresh.train(THETA, round=2).update, used.train(THETA, round=2).update) is not remembers


@pytest.mark.parametrize(
    ("epochs", "max_steps", "steps"), [(1, None, 5), (1, 100, 5), (1, 3, 3), (3, None, 15), (2, 7, 7), (1, 1, 1)]
)
def test_a_round_has_the_steps_of_its_epochs_up_to_max_steps(epochs: int, max_steps: int | None, steps: int) -> None:
    batches = list(make_trainer(TrainingSettings("sgd", 0.1, 20, epochs, max_steps)).drawn(1)[1])
    assert len(batches) == steps
    assert all(len(batch) in (20, 10) for batch in batches)


def test_every_epoch_sees_every_example_once_in_a_new_order_and_only_images_are_normalised() -> None:
    batches = list(make_trainer(TrainingSettings("sgd", 0.1, 20, 2, None)).drawn(1)[1])
    first, second = torch.cat(batches[:5]), torch.cat(batches[5:])
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(90))
    assert not torch.equal(first, second)
    assert normalise(torch.tensor([0, 255], dtype=torch.uint8)).tolist() == [-1.0, 1.0]
    assert normalise(torch.tensor([0.0, 255.0])).tolist() == [0.0, 255.0]
    features = Examples((EXAMPLES.inputs / 255).astype(np.float32), EXAMPLES.labels)
    assert np.isfinite(make_trainer(SGD, examples=features).train(THETA, round=1).update).all()


@pytest.mark.parametrize("name", ["cuda", "cuda:0"])
@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is here, so it is not missing")
def test_missing_cuda_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=f'workload\\.device = "{name}": torch finds no CUDA device'):
        resolve_device(name)


def test_a_device_is_the_one_named_or_cuda_where_there_is_one_and_client_processes_take_turns_on_several() -> None:
    assert resolve_device("cpu") == CPU
    assert resolve_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert [dealt_device("auto", process, 3) for process in range(5)] == [0, 1, 2, 0, 1]
    assert {dealt_device("cuda:1", process, 2) for process in range(5)} == {1}
    with pytest.raises(ConfigError, match=r'workload\.device = "cuda:7": torch finds 2 CUDA devices, from cuda:0 on'):
        dealt_device("cuda:7", 0, 2)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_trains_as_the_cpu_does() -> None:
    here, there = (make_trainer(SGD, device=torch.device(device)) for device in ("cpu", "cuda"))
    np.testing.assert_allclose(there.train(THETA, round=1).update, here.train(THETA, round=1).update, atol=1e-5)


def test_a_synthetic_update_differs_by_client_and_round() -> None:
    theta = np.zeros(1000, np.float32)
    trainer = SyntheticTrainer(1000, seed=1, client_id="c1")
    update = trainer.train(theta, round=1).update
    assert update.dtype == np.float32
    assert update.size == trainer.manifest.size == 1000
    assert np.array_equal(update, SyntheticTrainer(1000, seed=1, client_id="c1").train(theta, round=1).update)
    assert not np.array_equal(update, trainer.train(theta, round=2).update)
    assert not np.array_equal(update, SyntheticTrainer(1000, seed=1, client_id="c2").train(theta, round=1).update)


@pytest.mark.parametrize(
    ("absent", "imported"),
    [
        ("torch", "pausefl_client.training.synthetic, pausefl_client.privacy.mechanism, pausefl_client.data.datasets"),
        ("numba", "pausefl.runtime.run, pausefl.runtime.virtual.process, pausefl.studies.compare"),
        ("matplotlib", "pausefl.runtime.run, pausefl.cli"),
    ],
)
def test_what_only_some_need_is_not_imported_by_all(absent: str, imported: str) -> None:
    assert python("-c", f"import sys, {imported}; print({absent!r} in sys.modules)") == "False\n"


FORKED = """
import gc, os, sys
import numpy as np, torch
from pausefl_client.data.datasets import Examples
from pausefl_client.training.model_vector import ModelVector
from pausefl_client.training.models import build_model
from pausefl_client.training.trainer import TrainingSettings
from pausefl_client.training.torch_trainer import LocalData, TorchTrainer

gc.freeze()
loaded = len(sys.modules)
if os.fork() > 0:
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
rng = np.random.default_rng(1)
data = LocalData(Examples(rng.integers(0, 256, (1334, 3, 32, 32), np.uint8), rng.integers(0, 10, 1334)))
model = build_model("cnn3", (3, 32, 32), 10, 1)
settings = TrainingSettings(max_steps=8)
trainer = TorchTrainer(model, data, settings, device=torch.device("cpu"), seed=1, client_id="c1")
trainer.train(ModelVector(model).values(), round=1)
lines = open("/proc/self/smaps_rollup").read().splitlines()
own_kb = sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))
print(len(sys.modules) - loaded, own_kb / 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_forked_client_trains_cheaply() -> None:
    new_modules, own_mb = python("-W", "error::UserWarning", "-c", FORKED).split()
    assert int(new_modules) < 40
    assert float(own_mb) < 50


# -- the trainer's state: with Adam, updates equal those of a client that is never interrupted


class Client:
    """A client's trainer and its states, which can be killed and restarted at any time."""

    def __init__(self, folder: Path, behaviour: Behaviour = Behaviour()) -> None:  # noqa: B008 - it cannot change
        self._path = folder / "client-000"
        self._behaviour = behaviour
        self.start()

    def start(self) -> None:
        honest = make_trainer(TrainingSettings("adam"))
        self._trainer = BehaviourChain([self._behaviour], seed=1, client_id="a").trainer(honest)
        self._states = TrainerStates(self._trainer, self._path)

    def train(self, round: int, *, run_id: str = "run", attempt: int = 1, is_killed: bool = False) -> bytes:
        key = ReleaseKey(run_id, round, attempt, f"model {round}")
        self._states.recall(key)
        update = self._trainer.train(THETA * np.float32(1 + 0.1 * round), round=round).update
        if not is_killed:
            self._states.keep(key)
        return update.tobytes()


@pytest.fixture
def whole(tmp_path: Path) -> dict[int, bytes]:
    """By round, the updates of a client that is never interrupted; it is not chosen in round 3."""
    client = Client(tmp_path / "whole")
    return {round_: client.train(round_) for round_ in (1, 2, 4, 5, 6)}


def test_a_round_trained_again_gives_the_same_update(tmp_path: Path, whole: dict[int, bytes]) -> None:
    """After a crash before or after the state was written, and without a crash."""
    client = Client(tmp_path / "parts")
    for round_, update in whole.items():
        assert client.train(round_, is_killed=True) == update
        client.start()
        assert client.train(round_) == update
        client.start()
        assert client.train(round_) == client.train(round_, attempt=2) == update


@pytest.mark.parametrize("participations", [1, 2])
def test_a_client_whose_models_are_stale_keeps_them(participations: int, tmp_path: Path) -> None:
    living, restarted = (Client(tmp_path / name, StaleModel(participations)) for name in ("a", "b"))
    for round_ in (1, 2, 4, 5, 6):
        restarted.train(round_, is_killed=True)
        restarted.start()
        assert restarted.train(round_) == living.train(round_)
        restarted.start()


@pytest.mark.parametrize("error", [PauseflError("dropped out"), ValueError("a bug")])
async def test_a_training_that_fails_leaves_the_trainer_as_it_was(error: Exception, tmp_path: Path) -> None:
    """A restarted client, too, knows nothing of the failed training."""
    rig = SessionRig()
    rig.keep_states(tmp_path / "client-007")
    rig.trainer.fails_in = {1: error, 3: error}
    async with rig.welcomed() as stream:
        for t in (1, 2, 3, 4):
            stream.give_job(rig.model, t)
            assert (await stream.heard()).result.status == (pb.STATUS_OK if t in {2, 4} else pb.STATUS_FAILED)
    assert rig.trainer.rounds == [2, 4]


def test_a_torn_state_is_not_taken_for_a_whole_one(tmp_path: Path, whole: dict[int, bytes]) -> None:
    client = Client(tmp_path)
    for round_ in (1, 2):
        client.train(round_)
    before = {path: path.read_bytes() for path in tmp_path.glob("client-000.states/*")}
    client.train(4)
    (latest,) = (path for path, state in before.items() if path.read_bytes() != state)
    latest.write_bytes(latest.read_bytes()[:-1])
    client.start()
    assert client.train(4) == whole[4]


@pytest.mark.parametrize("place", ["client-000.states/{}", "client-000.state-0"])  # 0.1.0 had the latter
def test_states_that_cannot_be_read_are_told(place: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    client = Client(tmp_path)
    client.train(1)
    for path in tmp_path.glob("client-000.states/*"):
        path.rename(tmp_path / place.format(path.name)).write_bytes(b'a digest {"run_id": "run", "round": 1}\nTensors')
    client.start()
    client.train(2)
    client.train(2, run_id="another")
    assert caplog.text.count("round 2: the trainer's state before it is gone; it starts fresh") == 1


def test_another_run_begins_with_a_fresh_optimizer_and_the_first_one_goes_on(
    tmp_path: Path, whole: dict[int, bytes]
) -> None:
    """This holds for living and restarted clients: ledgers of several runs may lie in one folder."""
    client = Client(tmp_path)
    for kind, restart in {"living": lambda: None, "restarted": client.start}.items():
        for round_ in (1, 2):
            client.train(round_, run_id=f"before, {kind}")
        restart()
        assert client.train(1, run_id=f"after, {kind}") == whole[1]
        restart()
        assert client.train(4, run_id=f"before, {kind}") == whole[4]
    client.start()
    client.train(1, run_id="the fifth")
    assert len({path.stem for path in tmp_path.glob("client-000.states/*")}) == 4
    client.start()
    vars(client._trainer)["holding"] = Holding("of data that were changed", "")
    with pytest.raises(PauseflError, match="its examples are others than in earlier rounds of this run; bring those"):
        client.train(2, run_id="the fifth")


@pytest.mark.parametrize(("round_", "is_said"), [(3, True), (1, False)])
def test_a_trainer_that_goes_back_past_its_states_starts_fresh(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, round_: int, is_said: bool
) -> None:
    """States of rounds taken back are never used for earlier or later rounds. In round 1 a fresh start is right."""
    back, fresh = Client(tmp_path / "back"), Client(tmp_path / "fresh")
    for played in (7, 8, 9):
        back.train(played)
    back.start()
    assert back.train(round_) == fresh.train(round_)
    assert ("the trainer's state before it is gone; it starts fresh" in caplog.text) == is_said
    back.start()
    assert back.train(10) == fresh.train(10)


def test_a_rounds_state_is_gone_once_the_round_is_played_again(tmp_path: Path, whole: dict[int, bytes]) -> None:
    """The client may not be chosen again for that round. It then goes on from the state before it."""
    client = Client(tmp_path / "again")
    for round_ in (1, 2, 3):
        client.train(round_)
    client.start()
    client.train(3, attempt=2, is_killed=True)
    client.start()
    assert client.train(4) == whole[4]


def test_a_state_that_is_shorter_than_the_one_it_overwrites_is_whole(tmp_path: Path) -> None:
    before, after = FakeTrainer(Clock()), FakeTrainer(Clock())
    states = TrainerStates(before, tmp_path / "a")
    for round_, remembered in enumerate(([1] * 50, [2] * 50, [3], []), 1):
        key = ReleaseKey("run", round_, 1, f"model {round_}")
        states.recall(key)
        before.rounds = remembered
        states.keep(key)
        TrainerStates(after, tmp_path / "a").recall(ReleaseKey("run", round_ + 1, 1, f"model {round_ + 1}"))
        assert after.rounds == remembered
        after.rounds = []


def test_only_its_owner_may_read_what_a_trainer_remembers(tmp_path: Path, whole: dict[int, bytes]) -> None:
    """The state comes from the data, without noise. A trainer without a state writes no file."""
    states, key = TrainerStates(make_trainer(SGD), tmp_path / "folder/a"), ReleaseKey("run", 1, 1, "model")
    states.recall(key)
    states.keep(key)
    assert [path.name for path in tmp_path.iterdir()] == ["whole"]
    assert len(files := list(tmp_path.glob("whole/*/*"))) == 2
    assert not any(file.stat().st_mode & 0o077 for file in files)
