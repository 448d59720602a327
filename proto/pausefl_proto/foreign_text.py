"""Makes texts from the other side safe for a log or a terminal."""


def shown(text: str, longest: int = 1000) -> str:
    """The first `longest` characters of a text, with "?" for each character that is not printable.

    Otherwise the other side could forge log lines, and send control sequences to a terminal.
    """
    return "".join(character if character.isprintable() else "?" for character in text[:longest])
