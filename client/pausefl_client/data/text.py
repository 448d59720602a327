"""Texts as numbers: each word is hashed into one of so many buckets (Weinberger et al., ICML 2009).

Nothing is learnt from any text, so no vocabulary is made of the clients' words and none has to be agreed on.
"""

import re
import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

BUCKETS = 8192
"""Tokens are in [0, BUCKETS); 0 fills a text up to its length and is no word's."""

_WORD = re.compile(r"[a-z0-9]+")


def hashed_tokens(texts: Sequence[str], length: int) -> npt.NDArray[np.int32]:
    """(n, length) tokens: the first words of each text, in lower case; a text without any has one, that of ""."""
    tokens = np.zeros((len(texts), length), np.int32)
    for row, text in zip(tokens, texts, strict=True):
        words = (_WORD.findall(text.lower()) or [""])[:length]
        row[: len(words)] = [1 + zlib.crc32(word.encode()) % (BUCKETS - 1) for word in words]
    return tokens
