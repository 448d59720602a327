"""Describes an experiment's run before it is played: how long it takes, and its changed settings."""

from collections.abc import Iterator

import numpy as np

from pausefl.experiment.experiment import Experiment, load_experiment, parse_experiment
from pausefl.experiment.links import plan_links
from pausefl.experiment.toml_source import preset_names
from pausefl.runtime.run_dir import differences
from pausefl.studies.time_left import in_words

_DRAWS = 500


def ahead(experiment: Experiment, source: str = "") -> Iterator[str]:
    """Lines: how long the delays will take, then each setting that differs from the preset or from the defaults."""
    chosen, rounds = most_chosen(experiment), experiment.experiment.rounds
    if experiment.experiment.clock == "virtual":
        yield "how long: waiting takes no time on the virtual clock, training alone does"
    else:
        wait_s, each = expected_wait_s(experiment, chosen), "step" if experiment.is_asynchronous else "round"
        yield (
            f"how long: at random, the delays of a {each} take {wait_s:.2g} s, so {rounds} {each}s take about"
            f" {in_words(rounds * wait_s)}; training and transfer come on top"
        )
    is_preset = source in preset_names()
    base, name = (load_experiment(source), source) if is_preset else (parse_experiment(""), "the defaults")
    for line in differences(base, experiment):
        key, _, values = line.partition(" is ")
        yield f"{key}: {values.replace(' there, ', f' in {name}, ')}"


def expected_wait_s(experiment: Experiment, chosen: int) -> float:
    """The expected wait of a round in real seconds: the mean longest delay of `chosen` clients drawn at random.

    For an asynchronous step with buffer K, all C places are always busy, so K updates take K/C of the mean delay.
    """
    if experiment.experiment.clock == "virtual":
        return 0.0
    rng = np.random.default_rng(1)
    links = plan_links(experiment.latency, experiment.client_ids, experiment.experiment.seed_of("latency"))
    delays_s = np.array([link.exchange.sample(rng, _DRAWS) for link in links.values()])
    if experiment.is_asynchronous:
        return experiment.latency.time_scale * float(delays_s.mean()) * chosen / experiment.asynchronous.concurrency
    order = rng.permuted(np.tile(np.arange(len(delays_s)), (_DRAWS, 1)), axis=1)[:, :chosen].T
    return experiment.latency.time_scale * float(np.take_along_axis(delays_s, order, axis=0).max(axis=0).mean())


def most_chosen(experiment: Experiment) -> int:
    """How many clients a round asks: `selection.m` or all, without Fed-TS's newcomers. For an asynchronous step, K."""
    if experiment.is_asynchronous:
        return experiment.asynchronous.buffer
    return experiment.clients.count if experiment.selection.policy == "all" else experiment.selection.m
