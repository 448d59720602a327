"""Latency laws: what a client's link adds to an exchange. Small frozen records, pure functions of a generator.

May live here: laws of delays, their means and quantiles. Not here: how TOML names them (`config`), or who waits.
"""

from pausefl.delays.base import Delay, SampledDelay, known_means, sampled, sampled_delays
from pausefl.delays.changing import DayCycle, DelayDrift, MarkovDelay, Outage, Schedule
from pausefl.delays.combined import Floor, Mixture, Scale, Sum
from pausefl.delays.laws import (
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
from pausefl.delays.published import published_delay, published_halves

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
    "published_halves",
    "sampled",
    "sampled_delays",
]
