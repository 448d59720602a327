"""The emulator: experiments, processes, delays, evaluation, reports, benchmarks, and the `pausefl` command."""
