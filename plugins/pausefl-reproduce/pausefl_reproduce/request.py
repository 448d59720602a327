"""A published figure as it was asked for: what its series play, and what that leaves out."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pausefl.experiment.experiment import Experiment
from pausefl.experiment.loading import load_experiment, parse_experiment
from pausefl.experiment.published import Reproduction
from pausefl.experiment.server_records import check_policies

COMMAND = "reproduce"
ReproductionScale = Literal["full", "quick"]


@dataclass(frozen=True)
class Request:
    """A reproduction as it was asked for."""

    reproduction: Reproduction
    series: tuple[str, ...]
    """The series that are run."""
    seeds: int
    scale: ReproductionScale
    overrides: tuple[str, ...]
    """Settings for every run, as `--set` takes them."""
    folder: Path
    each_seed: bool = False
    """Whether curves are drawn and kept of each seed, too."""

    @property
    def command(self) -> str:
        """The command that asks for it."""
        words = ["pausefl", COMMAND, self.reproduction.name, "--seeds", str(self.seeds), "--scale", self.scale]
        words += ["--series", ",".join(self.series), *(["--each-seed"] if self.each_seed else [])]
        return shlex.join([*words, *(word for override in self.overrides for word in ("--set", override))])

    def go_on(self, options: Sequence[str]) -> str:
        """The command that goes on with it, with these further options."""
        return f"{self.command} {shlex.join(['--resume', '--out', str(self.folder), *options])}"

    def experiment(self, series: str) -> Experiment:
        """What one series plays, with its first seed; ConfigError."""
        preset, own = self.reproduction.series[series]
        small = self.reproduction.quick.set if self.scale == "quick" else {}
        experiment = load_experiment(preset, {**self.reproduction.overrides, **own, **small})
        if self.overrides:
            experiment = parse_experiment(experiment.to_toml(), self.overrides)
        check_policies(experiment)
        return experiment


def in_full(reproduction: Reproduction) -> Request:
    """The request for all of it, as it was published."""
    return Request(reproduction, tuple(reproduction.series), reproduction.seeds, "full", (), Path())


def left_out(request: Request) -> list[str]:
    """What these runs leave out of the full ones, a phrase each."""
    whole = in_full(request.reproduction)
    phrases = [f"{whole.seeds - request.seeds} of {whole.seeds} seeds"] if request.seeds < whole.seeds else []
    if without := [series for series in whole.series if series not in request.series]:
        phrases.append(f"the series {', '.join(without)}")
    own, full = (each.experiment(request.series[0]) for each in (request, whole))
    if own.experiment.rounds < full.experiment.rounds:
        rounds = full.experiment.rounds
        phrases.append(f"{rounds - own.experiment.rounds} of {rounds} rounds")
    examples, of_examples = own.workload.examples, full.workload.examples
    if examples is not None and of_examples is not None and examples < of_examples:
        phrases.append(f"{of_examples - examples:,} of {of_examples:,} examples")
    if own.latency.time_scale < full.latency.time_scale and own.experiment.clock == "real":
        times = full.latency.time_scale / own.latency.time_scale
        phrases.append(f"real time: delays are {times:g} times shorter, so the machine's own delays weigh as much more")
    return phrases
