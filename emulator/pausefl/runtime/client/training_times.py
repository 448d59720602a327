"""How long training takes on the devices that are emulated, as the experiment says."""

from pausefl.delays import sampled_delays
from pausefl.runtime.client.plan import TrainingPlan
from pausefl_client.training.paced import PacedTrainer, steps_of
from pausefl_client.training.trainer import Trainer, TrainingSettings
from pausefl_proto.draws import generator


def with_stated_time(
    trainer: Trainer, plan: TrainingPlan, client_id: str, settings: TrainingSettings | None = None
) -> Trainer:
    """The trainer, which takes the client's stated time; without one, the trainer itself.

    `settings` are those it trains with, None for one that takes no steps.
    """
    if (law := plan.training_times.get(client_id)) is not None:

        def drawn_s(round: int) -> float:
            return float(sampled_delays(law, generator(plan.seed, "training-time", client_id, round), 1, round)[0])

        return PacedTrainer(trainer, drawn_s)
    if plan.step_s is None or settings is None:
        return trainer
    duration_s = plan.step_s * steps_of(settings, trainer.n_examples)
    return PacedTrainer(trainer, lambda _: duration_s)
