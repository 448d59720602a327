"""Texts as tokens: each word is hashed into one of `BUCKETS` buckets (Weinberger et al., ICML 2009).

No vocabulary is learnt from the texts, so clients need not reveal their words or agree on a vocabulary.
"""

import re
import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

BUCKETS = 8192
"""The number of tokens. Tokens are in [0, BUCKETS). 0 pads a text to its length, and stands for no word."""

_WORD = re.compile(r"[a-z0-9]+")


def hashed_tokens(texts: Sequence[str], length: int) -> npt.NDArray[np.int32]:
    """(n, length) tokens of the first words of each text, in lower case. A text without words has one, that of ""."""
    tokens = np.zeros((len(texts), length), np.int32)
    for row, text in zip(tokens, texts, strict=True):
        words = (_WORD.findall(text.lower()) or [""])[:length]
        row[: len(words)] = [1 + zlib.crc32(word.encode()) % (BUCKETS - 1) for word in words]
    return tokens
