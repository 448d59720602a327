"""Excerpts of long texts, short enough for one line."""

from itertools import takewhile

_LONGEST = 100


def excerpt(text: str, start: int = 0) -> str:
    """At most 100 characters of a text from position `start`, with dots at a cut end."""
    end = start + _LONGEST
    return f"{'...' if start else ''}{text[start:end]}{'...' if len(text) > end else ''}"


def excerpts(one: str, other: str) -> tuple[str, str]:
    """The excerpts of two texts around their first difference."""
    start = 0
    if max(len(one), len(other)) > _LONGEST:
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
        start = max(0, same - _LONGEST // 2)
    return excerpt(one, start), excerpt(other, start)
