"""A request for a published figure: the experiments of its series, and what they leave out."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pausefl.experiment.experiment import Experiment, load_experiment, parse_experiment
from pausefl.experiment.server_records import check_policies
from pausefl_reproduce.published import Reproduction

COMMAND = "reproduce"
ReproductionScale = Literal["full", "quick"]


@dataclass(frozen=True)
class Request:
    """A user's request for a reproduction."""

    reproduction: Reproduction
    series: tuple[str, ...]
    """The names of the series to run."""
    seeds: int
    scale: ReproductionScale
    overrides: tuple[str, ...]
    """Settings for every run, in the form of `--set`."""
    folder: Path
    each_seed: bool = False
    """Whether the curve of each seed is drawn and kept too."""

    @property
    def command(self) -> str:
        """The command line of this request, without its folder."""
        words = ["pausefl", COMMAND, self.reproduction.name, "--seeds", str(self.seeds), "--scale", self.scale]
        words += ["--series", ",".join(self.series), *(["--each-seed"] if self.each_seed else [])]
        return shlex.join([*words, *(word for override in self.overrides for word in ("--set", override))])

    def go_on(self, options: Sequence[str]) -> str:
        """The command line that resumes this request, with further options."""
        return f"{self.command} {shlex.join(['--resume', '--out', str(self.folder), *options])}"

    def experiment(self, series: str) -> Experiment:
        """The experiment of one series with its first seed. ConfigError if the settings are invalid."""
        preset, own = self.reproduction.series[series]
        small = self.reproduction.quick.set if self.scale == "quick" else {}
        experiment = load_experiment(preset, {**self.reproduction.overrides, **own, **small})
        if self.overrides:
            experiment = parse_experiment(experiment.to_toml(), self.overrides)
        check_policies(experiment)
        return experiment


def in_full(reproduction: Reproduction) -> Request:
    """The request for the whole reproduction, as published: all series and seeds at full scale."""
    return Request(reproduction, tuple(reproduction.series), reproduction.seeds, "full", (), Path())


def left_out(request: Request) -> list[str]:
    """Phrases that say what the requested runs leave out, compared with the full reproduction."""
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
