"""Words as hashed tokens."""

import zlib

import numpy as np

from pausefl_client.data.text import BUCKETS, hashed_tokens


def test_a_word_is_its_hash_wherever_it_stands() -> None:
    first, second = hashed_tokens(["Oil prices soar", "soar, OIL!"], 4)
    oil, prices, soar = (1 + zlib.crc32(word) % (BUCKETS - 1) for word in (b"oil", b"prices", b"soar"))
    assert first.tolist() == [oil, prices, soar, 0]
    assert second.tolist() == [soar, oil, 0, 0]


def test_long_texts_are_cut_and_empty_ones_have_a_word() -> None:
    tokens = hashed_tokens(["a b c d", "", "\u2026 -- \u00e9"], 2)
    assert tokens.shape == (3, 2)
    assert tokens[0].tolist() == hashed_tokens(["a b"], 2)[0].tolist()
    assert ((tokens != 0).sum(axis=1) == [2, 1, 1]).all()


def test_tokens_fill_the_buckets_and_no_word_is_padding() -> None:
    tokens = hashed_tokens([" ".join(f"w{i}" for i in range(100_000))], 100_000)
    assert tokens.dtype == np.int32
    assert (tokens.min(), tokens.max()) == (1, BUCKETS - 1)
