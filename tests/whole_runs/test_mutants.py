"""The mutation suite for privacy: its list and its table hold together, and a few mutants are caught within seconds."""

import re

import pytest

from mutants.catalogue import MUTANTS, Mutant
from mutants.running import MISSED, NOT_ASKED, ROOT, mutated, try_mutant

# All of them: `make mutants`.
SHORT = ("the schedule spends more than ε̄", "the bare update is sent", "an altered ledger is believed")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.why)
def test_a_mutant_still_fits_the_tree_and_compiles(mutant: Mutant) -> None:
    compile(mutated(mutant, (ROOT / mutant.file).read_text("utf-8")), mutant.file, "exec")


TABLE = ROOT / "benchmarks/privacy-mutants.md"


def test_the_table_is_of_these_mutants_and_none_goes_unnoticed() -> None:
    lines = TABLE.read_text("utf-8").splitlines()
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in lines if re.match(r"\| (?!breakage)", line)
    ]
    assert [row[0] for row in rows] == [mutant.why for mutant in MUTANTS]
    assert len(rows) >= 25
    for _, _, audit, tests in rows:
        assert tests != MISSED or audit not in (MISSED, NOT_ASKED)


@pytest.mark.slow
@pytest.mark.end_to_end
@pytest.mark.parametrize("why", SHORT)
def test_a_mutant_is_caught(why: str) -> None:
    (mutant,) = (mutant for mutant in MUTANTS if mutant.why == why)
    assert try_mutant(mutant).tests.startswith(mutant.tests)
