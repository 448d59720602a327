"""Texts that the other side wrote: what of them may reach a log or a terminal."""


def shown(text: str, longest: int = 1000) -> str:
    """The first `longest` characters of a text, with "?" for each that is not printable.

    Otherwise the other side could forge lines of a log, and send commands to a terminal.
    """
    return "".join(character if character.isprintable() else "?" for character in text[:longest])
