"""Warnings, before and during a run, that privacy noise may overwhelm the model."""

from math import floor, inf, log

from pausefl_proto.budget import Budget

MOST_NOISE_TO_CLIP = 5.0
"""The greatest ratio of noise scale to clip bound without a warning. With more noise, a model may learn nothing."""
NOISE_REMEDY = (
    "a model may drown in it; privacy.noise_to_clip_max or epsilon_floor retires clients before that, a greater"
    " epsilon_budget or fewer rounds avoid it"
)


def noise_ahead(budget: Budget, rounds: int, asked: int, clients: int) -> tuple[str, bool]:
    """The ratio of noise scale to clip bound at a client's first and last release, and whether there is too much noise.

    The ratios are a sentence, with a remedy if the last one exceeds MOST_NOISE_TO_CLIP. They hold if all clients are
    chosen equally often in `rounds` rounds, each of which asks `asked` of them.
    """
    releases = min(max(1, round(rounds * asked / clients)), budget.participations or rounds)
    first, last = budget.noise_to_clip(1), budget.noise_to_clip(releases)
    # A client's releases without too much noise: eps_i falls by e^-eta a release.
    below = max(0, floor(log(MOST_NOISE_TO_CLIP / first) / budget.eta) + 1)
    swamped_after = below * clients // asked if below < (budget.participations or inf) else 0
    said = (
        f"noise is {in_times(first)} the clip bound in a client's release 1, and {in_times(last)} in release"
        f" {releases}, its last if all are chosen equally often"
    )
    if swamped_after:  # not by the first release
        said += f"; it passes {MOST_NOISE_TO_CLIP:g} times after about {swamped_after} rounds"
    is_too_much = last > MOST_NOISE_TO_CLIP
    return said + (f"; {NOISE_REMEDY}" if is_too_much else ""), is_too_much


def in_times(ratio: float) -> str:
    """The ratio in words, with two digits and without an exponent: "0.51 times", "80,000 times"."""
    two_digits = float(f"{ratio:.2g}")
    return f"{two_digits:,.0f} times" if ratio >= 10 else f"{two_digits:g} times"
