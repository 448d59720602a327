"""Long texts, cut to what can be read in a line."""

from itertools import takewhile

_LONGEST = 100


def excerpt(text: str, start: int = 0) -> str:
    """At most 100 characters of a text from a place on, with dots where some are left out."""
    end = start + _LONGEST
    return f"{'...' if start else ''}{text[start:end]}{'...' if len(text) > end else ''}"


def excerpts(one: str, other: str) -> tuple[str, str]:
    """Of two texts that differ, the part where they do."""
    start = 0
    if max(len(one), len(other)) > _LONGEST:
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
        start = max(0, same - _LONGEST // 2)
    return excerpt(one, start), excerpt(other, start)
