"""Warnings, before and during a run, that privacy noise may overwhelm the model."""

from dataclasses import dataclass
from math import floor, log

from pausefl_proto.budget import Budget

MOST_NOISE_TO_CLIP = 5.0
"""The greatest ratio of noise scale to clip bound without a warning. With more noise, a model may learn nothing."""
NOISE_REMEDY = (
    "a model may drown in it; privacy.noise_to_clip_max or epsilon_floor retires clients before that, a greater"
    " epsilon_budget or fewer rounds avoid it"
)


@dataclass(frozen=True)
class NoiseAhead:
    """The ratio of noise scale to clip bound at a client's first and last release, if all are chosen equally often."""

    releases: int
    """The number of releases of each client."""
    first: float
    last: float
    swamped_after: int
    """The round after which the ratio exceeds MOST_NOISE_TO_CLIP. 0 if the first release exceeds it already."""

    @classmethod
    def of(cls, budget: Budget, rounds: int, asked: int, clients: int) -> "NoiseAhead":
        """The ratio over a run of `rounds` rounds, each of which asks `asked` of the clients."""
        releases = min(max(1, round(rounds * asked / clients)), budget.participations or rounds)
        growing = log(MOST_NOISE_TO_CLIP / budget.noise_to_clip(1)) / budget.eta  # eps_i falls by e^-eta a release
        rounds_below = max(0, floor(growing) + 1) * clients // asked
        return cls(releases, budget.noise_to_clip(1), budget.noise_to_clip(releases), rounds_below)

    @property
    def swamps(self) -> bool:
        """Whether the ratio exceeds MOST_NOISE_TO_CLIP in the end."""
        return self.last > MOST_NOISE_TO_CLIP

    @property
    def text(self) -> str:
        """Both ratios as a sentence, with a remedy if there is too much noise."""
        first, last = (f"{ratio:.2g} times" for ratio in (self.first, self.last))
        said = f"noise is {first} the clip bound in a client's release 1, and {last} in release {self.releases}"
        passes = f"; it passes {MOST_NOISE_TO_CLIP:g} times after about {self.swamped_after} rounds"
        said += ", its last if all are chosen equally often" + (passes if self.swamped_after else "")
        return said + (f"; {NOISE_REMEDY}" if self.swamps else "")
