"""What a trainer remembers survives restarts: with Adam, the updates are those of a client never interrupted."""

from pathlib import Path

import numpy as np
import pytest
import torch

from pausefl.experiment.population.behaviours import Behaviour, BehaviourChain, StaleModel
from pausefl_client.data.datasets import Examples
from pausefl_client.privacy.ledger import ReleaseKey
from pausefl_client.training.model_vector import ModelVector
from pausefl_client.training.models import build_model
from pausefl_client.training.torch_trainer import LocalData, TorchTrainer
from pausefl_client.training.trainer import TrainingSettings
from pausefl_client.training.trainer_state import TrainerStates
from pausefl_proto.errors import PauseflError
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_proto.wire import Vector
from rigs.clock import Clock
from rigs.session import FakeTrainer, SessionRig

CPU = torch.device("cpu")


def trainer(optimizer: str = "adam") -> TorchTrainer:
    rng = np.random.default_rng(1)
    examples = Examples(rng.standard_normal((60, 64), np.float32), rng.integers(0, 10, 60))
    model = build_model("mlp", (64,), 10, 1)
    return TorchTrainer(model, LocalData(examples), TrainingSettings(optimizer), device=CPU, seed=1, client_id="a")


THETA: Vector = ModelVector(build_model("mlp", (64,), 10, 1)).values()


class Client:
    """A client's trainer and its states, which may be killed and started again at any time."""

    def __init__(self, folder: Path, behaviour: Behaviour = Behaviour()) -> None:  # noqa: B008 - it cannot change
        self._path = folder / "client-000"
        self._behaviour = behaviour
        self.start()

    def start(self) -> None:
        self._trainer = BehaviourChain([self._behaviour], seed=1, client_id="a").trainer(trainer())
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
    """The updates of a client that is never interrupted, by round; it is not chosen in round 3."""
    client = Client(tmp_path / "whole")
    return {round_: client.train(round_) for round_ in (1, 2, 4, 5, 6)}


def test_a_restart_after_any_round_changes_no_update(tmp_path: Path, whole: dict[int, bytes]) -> None:
    client = Client(tmp_path / "parts")
    for round_, update in whole.items():
        assert client.train(round_) == update
        client.start()


def test_a_round_trained_again_gives_the_same_update(tmp_path: Path, whole: dict[int, bytes]) -> None:
    """After a crash before its state was written, after one behind that, and in a client that lives on."""
    client = Client(tmp_path / "parts")
    for round_, update in whole.items():
        assert client.train(round_, is_killed=True) == update
        client.start()
        assert client.train(round_) == update
        client.start()
        assert client.train(round_) == update
        assert client.train(round_, attempt=2) == update


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
    """As after a restart, which knows nothing of it."""
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
    before = {path: path.read_bytes() for path in tmp_path.glob("client-000.state-*")}
    client.train(4)
    (latest,) = (path for path, state in before.items() if path.read_bytes() != state)
    latest.write_bytes(latest.read_bytes()[:-1])
    client.start()
    assert client.train(4) == whole[4]


def test_another_run_begins_with_a_fresh_optimizer(tmp_path: Path, whole: dict[int, bytes]) -> None:
    """Whether the client lives on or not: ledgers may outlive a run, and lie in the same folder."""
    client = Client(tmp_path)
    for is_restarted in (False, True):
        for round_ in (1, 2):
            client.train(round_, run_id=f"before {is_restarted}")
        if is_restarted:
            client.start()
        assert client.train(1, run_id=f"after {is_restarted}") == whole[1]


@pytest.mark.parametrize(("round_", "is_said"), [(3, True), (1, False)])
def test_a_trainer_that_goes_back_past_its_states_starts_fresh(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, round_: int, is_said: bool
) -> None:
    """No state of rounds that were taken back is taken for one before them, nor later. In round 1, fresh is exact."""
    back, fresh = Client(tmp_path / "back"), Client(tmp_path / "fresh")
    for played in (7, 8, 9):
        back.train(played)
    back.start()
    assert back.train(round_) == fresh.train(round_)
    assert ("the trainer's state before it is gone; it starts fresh" in caplog.text) == is_said
    back.start()
    assert back.train(10) == fresh.train(10)


def test_a_rounds_state_is_gone_once_the_round_is_played_again(tmp_path: Path, whole: dict[int, bytes]) -> None:
    """Its client may not be chosen for it this time: then it goes on from the state before."""
    client = Client(tmp_path / "again")
    for round_ in (1, 2, 3):
        client.train(round_)
    client.start()
    client.train(3, attempt=2, is_killed=True)
    client.start()
    assert client.train(4) == whole[4]


def key(round: int, run_id: str = "run") -> ReleaseKey:
    return ReleaseKey(run_id, round, 1, f"model {round}")


def test_a_state_that_is_shorter_than_the_one_it_overwrites_is_whole(tmp_path: Path) -> None:
    before, after = FakeTrainer(Clock()), FakeTrainer(Clock())
    states = TrainerStates(before, tmp_path / "a")
    for round_, remembered in ((1, [1] * 50), (2, [2] * 50), (3, [3])):
        before.rounds = remembered
        states.keep(key(round_))
    TrainerStates(after, tmp_path / "a").recall(key(4))
    assert after.rounds == [3]


def test_a_first_training_that_is_broken_off_leaves_nothing_of_another_run(tmp_path: Path) -> None:
    before, after = FakeTrainer(Clock()), FakeTrainer(Clock())
    states = TrainerStates(before, tmp_path / "a")
    for round_ in (1, 2):
        before.rounds = [round_]
        states.keep(key(round_, "another"))
    states = TrainerStates(after, tmp_path / "a")
    states.recall(key(1))
    after.rounds = [1]
    states.undo()
    assert after.rounds == []


def test_only_its_owner_may_read_what_a_trainer_remembers(tmp_path: Path, whole: dict[int, bytes]) -> None:
    """It is computed from the data, and no noise was added to it."""
    assert len(files := list((tmp_path / "whole").iterdir())) == 2
    assert not any(file.stat().st_mode & 0o077 for file in files)


def test_nothing_is_written_where_nothing_is_remembered(tmp_path: Path) -> None:
    states = TrainerStates(trainer("sgd"), tmp_path / "folder" / "a")
    states.keep(ReleaseKey("run", 1, 1, "model"))
    assert list(tmp_path.iterdir()) == []
