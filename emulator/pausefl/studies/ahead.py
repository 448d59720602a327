"""Describes an experiment's run before it is played: how long it takes, and its changed settings."""

from collections.abc import Iterator

import numpy as np

from pausefl.experiment.delay_laws.base import sampled_delays
from pausefl.experiment.experiment import Experiment, load_experiment, parse_experiment
from pausefl.experiment.in_force import in_force
from pausefl.experiment.links import plan_links
from pausefl.experiment.toml_source import preset_names
from pausefl.results.statistics import three_digits
from pausefl.runtime.run_dir import differences
from pausefl.studies.time_left import in_words
from pausefl_server.rounds.deadline import GREATEST_S, answers_needed

_DRAWS = 500


def ahead(experiment: Experiment, source: str = "") -> Iterator[str]:
    """Lines: how long the delays will take, then each setting that differs from the preset or from the defaults."""
    rounds = experiment.experiment.rounds
    if experiment.experiment.clock == "virtual":
        yield "how long: waiting takes no time on the virtual clock, training alone does"
    else:
        wait_s, each = expected_wait_s(experiment), "step" if experiment.is_asynchronous else "round"
        others = "are part of it" if experiment.latency.mode == "total" else "come on top"
        yield (
            f"how long: at random, the delays of a {each} take {three_digits(wait_s)} s, so {rounds} {each}s take about"
            f" {in_words(rounds * wait_s)}; training and transfer {others}"
        )
    is_preset = source in preset_names()
    base, name = (load_experiment(source), source) if is_preset else (parse_experiment(""), "the defaults")
    for line in differences(in_force(base), in_force(experiment)):
        key, _, values = line.partition(" is ")
        yield f"{key}: {values.replace(' there, ', f' in {name}, ')}"


def expected_wait_s(experiment: Experiment) -> float:
    """The expected wait of a round in real seconds: for as many answers as it needs of clients asked at random.

    For an asynchronous step with buffer K, all C places are always busy, so K updates take K/C of the mean delay.
    """
    if experiment.experiment.clock == "virtual":
        return 0.0
    rng, scale, selection = np.random.default_rng(1), experiment.latency.time_scale, experiment.selection
    links = plan_links(experiment.latency, experiment.client_ids, experiment.experiment.seed_of("latency"))
    delays_s = scale * np.array([sampled_delays(link.exchange, rng, _DRAWS) for link in links.values()])
    delays_s = np.minimum(delays_s, experiment.round_timeout_s or GREATEST_S * max(1.0, scale))
    asked, spare = experiment.asked, selection.asked - selection.m
    if experiment.is_asynchronous:
        return float(delays_s.mean()) * asked / experiment.asynchronous.concurrency
    needed = answers_needed(asked, selection.m, spare, experiment.server.quorum)
    return float(np.sort(rng.permuted(delays_s, axis=0)[:asked], axis=0)[needed - 1].mean())
