"""The library and the `pausefl` command: experiments, processes, delays, evaluation, reports, benchmarks."""

__version__ = "0.1.0"
