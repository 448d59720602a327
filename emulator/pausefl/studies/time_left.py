"""Estimates how long a campaign will still take."""


def time_left(elapsed_s: float, ended: int, left: int, under_way: int = 0) -> str:
    """Text such as ", about 3 min left". Of the `left` runs, `under_way` have begun and count as half done.

    Empty before a run has ended, and if no run is left.
    """
    if not (ended and left):
        return ""
    return f", about {in_words(elapsed_s * (left - under_way / 2) / (ended + under_way / 2))} left"


def in_words(duration_s: float) -> str:
    """A duration in readable units: "12 s", "2 min", "1.7 h"."""
    minutes = duration_s / 60
    if minutes < 1:
        return f"{max(duration_s, 1):.0f} s"
    return f"{minutes / 60:.1f} h" if minutes >= 90 else f"{minutes:.0f} min"
