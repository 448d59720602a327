"""What optimizers remember of several parameters, joined and parted again."""

import pytest
import torch
from torch import nn

from pausefl_client.batched.stack import ModelStack
from pausefl_client.batched.training import train_together
from pausefl_client.registries import OPTIMIZERS
from pausefl_client.training.joined_states import joined, parted
from pausefl_client.training.optimizers import make_optimizer
from pausefl_client.training.trainer import TrainingSettings
from rigs.batched import ADAM, network, played_together, theta_of, trainers_of


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_joined_states_part_into_what_they_were(name: str) -> None:
    parameters = list(network().parameters())
    optimizer = make_optimizer(TrainingSettings(name, 0.01), parameters)
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    states, shapes = [optimizer.state.get(parameter, {}) for parameter in parameters], [p.shape for p in parameters]
    again = parted(joined(states, shapes), shapes)
    for before, after in zip(states, again, strict=True):
        torch.testing.assert_close(after, dict(before), rtol=0, atol=0)
    counts = [state["step"] for state in again if isinstance(state.get("step"), torch.Tensor)]
    assert len({count.data_ptr() for count in counts}) == len(counts), "each parameter counts its own steps"


def test_nothing_is_joined_and_parted_of_optimizers_that_remember_nothing() -> None:
    shapes = [parameter.shape for parameter in nn.Linear(2, 3).parameters()]
    assert joined([{}, {}], shapes) == {}
    assert parted({}, shapes) == [{}, {}]


def test_training_together_leaves_what_trainers_remember_until_they_are_told() -> None:
    """What it gave may be dropped; the client then goes on from where it was."""
    trainers = trainers_of()
    stack = ModelStack(trainers[0].model, ADAM, len(trainers))
    played_together(trainers, theta_of(trainers[0]), 1, stack)
    before = [{name: value.clone() for name, value in trainer.optimizer_states().items()} for trainer in trainers]
    train_together(stack, trainers, theta_of(trainers[0], 2), round=2)
    for trainer, states in zip(trainers, before, strict=True):
        torch.testing.assert_close(dict(trainer.optimizer_states()), states, rtol=0, atol=0)


def test_a_trainer_that_is_restored_forgets_what_it_remembered_of_a_training_together() -> None:
    trainer, fresh = trainers_of(ADAM, sizes=(20,))[0], trainers_of(ADAM, sizes=(20,))[0]
    played_together([trainer], theta_of(trainer), 1)
    trainer.restore(b"")
    assert trainer.optimizer_states() == {}
    theta = theta_of(trainer, 2)
    assert (trainer.train(theta, round=2).update == fresh.train(theta, round=2).update).all()
