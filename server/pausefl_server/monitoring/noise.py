"""The effect of noise on a model, in words: before a run, and while it goes on."""

from dataclasses import dataclass
from math import floor, log

from pausefl_proto.budget import Budget

MOST_NOISE_TO_CLIP = 5.0
"""Noise whose scale is more times what an update is clipped to is announced: a model may drown in it."""
NOISE_REMEDY = (
    "a model may drown in it; privacy.noise_to_clip_max or epsilon_floor retires clients before that, a greater"
    " epsilon_budget or fewer rounds avoid it"
)


@dataclass(frozen=True)
class NoiseAhead:
    """Noise scale over clip bound at a client's first and its last release, if all are chosen equally often."""

    releases: int
    """How often a client releases then."""
    first: float
    last: float
    swamped_after: int
    """The round after which a client's noise passes MOST_NOISE_TO_CLIP, 0 where it is so from the first release on."""

    @classmethod
    def of(cls, budget: Budget, rounds: int, asked: int, clients: int) -> "NoiseAhead":
        """That of a run of so many rounds, each of which asks so many of the clients."""
        releases = min(max(1, round(rounds * asked / clients)), budget.participations or rounds)
        growing = log(MOST_NOISE_TO_CLIP / budget.noise_to_clip(1)) / budget.eta  # eps_i falls by e^-eta a release
        rounds_below = max(0, floor(growing) + 1) * clients // asked
        return cls(releases, budget.noise_to_clip(1), budget.noise_to_clip(releases), rounds_below)

    @property
    def swamps(self) -> bool:
        """Whether a model may drown in it."""
        return self.last > MOST_NOISE_TO_CLIP

    @property
    def text(self) -> str:
        """Both in words, with what to do where it swamps a model."""
        first, last = (f"{ratio:.2g} times" for ratio in (self.first, self.last))
        said = f"noise is {first} the clip bound in a client's release 1, and {last} in release {self.releases}"
        passes = f"; it passes {MOST_NOISE_TO_CLIP:g} times after about {self.swamped_after} rounds"
        said += ", its last if all are chosen equally often" + (passes if self.swamped_after else "")
        return said + (f"; {NOISE_REMEDY}" if self.swamps else "")
