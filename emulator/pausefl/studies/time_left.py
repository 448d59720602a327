"""How long a campaign will take."""


def time_left(elapsed_s: float, ended: int, left: int, under_way: int = 0) -> str:
    """ ", about 3 min left" where so many runs have ended, and so many have not; of those under way, half is done.

    Empty where none is left, and before one has ended.
    """
    if not (ended and left):
        return ""
    return f", about {in_words(elapsed_s * (left - under_way / 2) / (ended + under_way / 2))} left"


def in_words(duration_s: float) -> str:
    """A duration as people say it: "12 s", "2 min", "1.7 h"."""
    minutes = duration_s / 60
    if minutes < 1:
        return f"{max(duration_s, 1):.0f} s"
    return f"{minutes / 60:.1f} h" if minutes >= 90 else f"{minutes:.0f} min"
