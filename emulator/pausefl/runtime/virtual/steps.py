"""Measures how long a training step takes on this machine, if an experiment does not state it."""

import json
from dataclasses import replace
from pathlib import Path
from timeit import repeat

from pausefl.runtime.client.plan import TrainingPlan
from pausefl.runtime.evaluator.rehearsal import told_in_one_line
from pausefl.runtime.run_dir import CAMPAIGN_PLAN, SHARED_STEPS
from pausefl.runtime.virtual.batching import own_trainers, plain_trainers
from pausefl_process.files import held_folder, write_durably

# How often one client's training is timed; the least time counts. The first time warms torch up.
_TRIALS = 3


def with_step_time(plan: TrainingPlan, run_dir: Path) -> TrainingPlan:
    """The plan with a stated training time. If it states none, the time of a step is measured.

    It is measured once for a run, or once for all runs of a campaign that train alike, so that they can be compared.
    """
    if _is_stated(plan):
        return plan
    kept = run_dir / "step.json"
    if not kept.exists():
        campaign = next((folder for folder in run_dir.parents[:2] if (folder / CAMPAIGN_PLAN).exists()), None)
        step_s = _measured_step_s(plan) if campaign is None else _shared_step_s(plan, campaign)
        write_durably(kept, json.dumps({"step_s": step_s}) + "\n")
    return replace(plan, workload=replace(plan.workload, **json.loads(kept.read_text("utf-8"))))


def share_step_time(plan: TrainingPlan, campaign: Path) -> None:
    """Measure a step for all runs of a campaign that train alike, if the plan does not state a training time."""
    if not _is_stated(plan):
        _shared_step_s(plan, campaign)


def _is_stated(plan: TrainingPlan) -> bool:
    return plan.workload.model == "synthetic" or bool(plan.training_times) or plan.workload.step_s is not None


def _shared_step_s(plan: TrainingPlan, campaign: Path) -> float:
    """The seconds of a step. The first run of the campaign that trains alike measures them; the others wait for it."""
    w, shared = plan.workload, campaign / SHARED_STEPS
    data, training = (w.model, w.dataset, w.batch_size, w.device), (w.training, w.proximal_mu)
    trained = json.dumps([*data, *training, w.optimizer, w.optimizer_options])
    with held_folder(campaign):
        steps: dict[str, float] = json.loads(shared.read_text("utf-8")) if shared.exists() else {}
        if trained not in steps:
            steps[trained] = _measured_step_s(plan)
            write_durably(shared, json.dumps(steps, indent=1) + "\n")
        return steps[trained]


def _measured_step_s(plan: TrainingPlan) -> float:
    """The seconds of one training step of the first client on this machine, to three digits, without behaviours."""
    (trainer,) = plain_trainers(plan, 1)
    theta = trainer.manifest.with_no_control(own_trainers([trainer])[0].vector.values())
    with told_in_one_line(
        plan.workload, f"measuring workload.step_s, which is not set, by training {plan.client_ids[0]}"
    ):
        times_s = repeat(lambda: trainer.train(theta, round=1), number=1, repeat=_TRIALS)
    return float(f"{min(times_s) / plan.workload.steps(trainer.n_examples):.3g}")
