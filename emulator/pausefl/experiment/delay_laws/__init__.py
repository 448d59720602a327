"""Latency laws: the delays that a client's link adds to exchanges. Small frozen records, pure functions of a generator.

May live here: laws of delays, their means and quantiles. Not here: their TOML tables (`delays`), or the waiting itself.
"""

from pausefl.experiment.delay_laws.base import Delay, SampledDelay, known_means, sampled, sampled_delays
from pausefl.experiment.delay_laws.changing import DayCycle, DelayDrift, MarkovDelay, Outage, Schedule
from pausefl.experiment.delay_laws.combined import Floor, Mixture, Scale, Sum, published_delay
from pausefl.experiment.delay_laws.laws import (
    Constant,
    Empirical,
    Exponential,
    Gamma,
    LogNormal,
    NoDelay,
    Normal,
    Pareto,
    Recorded,
    Weibull,
)

__all__ = [
    "Constant",
    "DayCycle",
    "Delay",
    "DelayDrift",
    "Empirical",
    "Exponential",
    "Floor",
    "Gamma",
    "LogNormal",
    "MarkovDelay",
    "Mixture",
    "NoDelay",
    "Normal",
    "Outage",
    "Pareto",
    "Recorded",
    "SampledDelay",
    "Scale",
    "Schedule",
    "Sum",
    "Weibull",
    "known_means",
    "published_delay",
    "sampled",
    "sampled_delays",
]
