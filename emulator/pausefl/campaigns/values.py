"""Values of keys as a command line lists them: TOML, or plain words, apart by commas."""

from collections.abc import Iterator
from typing import Any

from pausefl.config.toml_source import value_of_text


def listed_values(text: str) -> list[Any]:
    """The values that commas part, but for commas within brackets, braces and quotes."""
    return [value_of_text(part.strip()) for part in _parts(text) if part.strip()]


def _parts(text: str) -> Iterator[str]:
    """A text cut at the commas outside of brackets, braces and quotes. Quotes open where a value may begin."""
    depth, quote, start = 0, "", 0
    for place, sign in enumerate(text):
        if quote:
            if sign == quote and not (quote == '"' and text[place - 1] == "\\"):
                quote = ""
        elif sign in "\"'" and (depth or not text[start:place].strip()):
            quote = sign
        elif sign in "[{":
            depth += 1
        elif sign in "]}":
            depth -= 1
        elif sign == "," and depth <= 0:
            yield text[start:place]
            start = place + 1
    yield text[start:]
