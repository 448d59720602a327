"""The part of a client process that needs torch.

The fork server imports this module before it forks. At that time gRPC is imported but not started, and CUDA is not
touched.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from pausefl.experiment.client_records import dealt_out, method_of
from pausefl.experiment.population.behaviours import BehaviourChain
from pausefl.runtime.client.plan import TrainingPlan
from pausefl_client.batched.captured import CapturedSteps
from pausefl_client.batched.host import BatchedHost
from pausefl_client.data.datasets import load_dataset
from pausefl_client.data.holdings import dealing_of, holding_of
from pausefl_client.training.method import TrainingMethod
from pausefl_client.training.models import build_model, probe_of
from pausefl_client.training.torch_trainer import LocalData, TorchTrainer, resolve_device, use_one_thread
from pausefl_client.training.trainer import Trainer, TrainingSettings
from pausefl_process.global_generators import seeded_generators
from pausefl_proto.draws import stable_hash


def make_torch_trainers(
    plan: TrainingPlan, client_ids: Sequence[str], batched: BatchedHost | None = None
) -> dict[str, Trainer]:
    """A trainer for each of these clients, by id. All use one device; with `batched`, several train together."""
    use_one_thread()
    w, seed = plan.workload, plan.seed
    data = load_dataset(w.dataset, examples=w.examples, seed=plan.split_seed)
    parts = dealt_out(w, data, plan.client_ids, plan.split_seed)
    rows = dict(zip(plan.client_ids, parts, strict=True))
    device = resolve_device(w.device)
    new_model = partial(build_model, w.model, data.input_shape, data.classes, seed, has_tokens=data.has_tokens)
    probe = probe_of(new_model(), data)
    dealing = dealing_of(parts, dataset=w.dataset, examples=w.examples, split_seed=plan.split_seed)

    def trainer_of(client_id: str) -> Trainer:
        with seeded_generators(stable_hash(seed, "client", client_id)):  # users' code may draw from them
            chain = BehaviourChain(plan.behaviours[client_id], seed=seed, client_id=client_id)
            held = data.train.take(rows[client_id])
            holding = holding_of(held, dealing)  # before a behaviour, which may change the examples
            settings, method = chain.settings(w), method_of(w)
            local = LocalData(chain.examples(held, data.classes), data.classes, holding, data.task)
            trainer = TorchTrainer(
                new_model(), local, settings, device=device, seed=seed, client_id=client_id, method=method
            )
            trainer.manifest = replace(trainer.manifest, probe=probe)
            if batched is not None:
                admitted = batched.admit(client_id, trainer)
                return batched.outermost(client_id, chain.trainer(plan.paced(admitted, client_id, settings)))
            own: Trainer = trainer if captured is None else captured.admit(trainer)
            return chain.trainer(plan.paced(own, client_id, settings))

    captured = CapturedSteps() if device.type == "cuda" and batched is None else None
    if device.type == "cuda":
        of_first = LocalData(data.train.take(rows[client_ids[0]]), data.classes, task=data.task)
        take_first_steps(new_model(), of_first, w, device, method_of(w), captured, plan.trainers)
    return {client_id: trainer_of(client_id) for client_id in client_ids}


def take_first_steps(
    model: nn.Module,
    data: LocalData,
    settings: TrainingSettings,
    device: torch.device,
    method: TrainingMethod,
    captured: CapturedSteps | None = None,
    at_once: int = 1,
) -> None:
    """Warm up a GPU by training a throwaway model: its first steps take seconds, which would count as latency.

    With `captured`, capture the steps of `at_once` clients, the number that train at the same time.
    """
    two_steps = replace(settings, epochs=2, max_steps=2)
    trainer = TorchTrainer(model, data, two_steps, device=device, seed=0, client_id="first steps", method=method)
    theta = trainer.manifest.with_no_control(trainer.vector.values())
    if captured is None or not captured.prepare(trainer, theta, at_once):
        trainer.train(theta, round=1)
