"""The links of an experiment's clients, as its plan holds them."""

from pausefl.experiment.delay_laws import Delay
from pausefl.experiment.experiment import Experiment
from pausefl.experiment.links import LinkPlan, plan_links


def links_of(experiment: Experiment) -> dict[str, LinkPlan]:
    """Each client's link, by id; ConfigError."""
    return plan_links(experiment.latency, experiment.client_ids, experiment.experiment.seed_of("latency"))


def delays_of(experiment: Experiment) -> dict[str, Delay]:
    """The law of each client's delay per exchange, by id."""
    return {client_id: link.exchange for client_id, link in links_of(experiment).items()}
