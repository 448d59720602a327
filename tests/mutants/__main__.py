"""`make mutants`: break privacy in each way of the catalogue, see who notices, write benchmarks/privacy-mutants.md.

python tests/mutants [WORD...]      with words, only the mutants whose description has one of them; writes nothing

Some 20 minutes on two cores. What was found is kept in build/mutants.json, so that an interrupted run goes on
where it stopped; a change of the packages or of the catalogue starts it anew.
"""

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from mutants.catalogue import MUTANTS, Mutant
from mutants.kept import KeptVerdicts
from mutants.running import ROOT, Verdict, check_tree, table, try_mutant

_AT_ONCE = 2


def main() -> int:
    """0 if every mutant was caught by all it was shown to that had to catch it."""
    words = _words()
    chosen = [m for m in MUTANTS if not words or any(word in m.why for word in words)]
    kept = KeptVerdicts(ROOT / "build/mutants.json")
    if not any(kept.of(mutant) for mutant in chosen):
        print(f"{len(chosen)} mutants; first the tree as it is, which must pass", flush=True)
        check_tree(chosen)
    done = 0

    def tried(mutant: Mutant) -> Verdict:
        nonlocal done
        if (verdict := kept.of(mutant)) is None:
            verdict = try_mutant(mutant)
            kept.add(verdict)
        done += 1
        found = f"run: {verdict.run}; audit: {verdict.audit}; tests: {verdict.tests}"
        says = "CAUGHT BY NOTHING" if verdict.survives else found
        print(f"[{done}/{len(chosen)}] {mutant.why}: {says}", flush=True)
        return verdict

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        verdicts = list(pool.map(tried, chosen))
    if not words:
        (ROOT / "benchmarks/privacy-mutants.md").write_text(table(verdicts), "utf-8")
    return int(any(verdict.survives for verdict in verdicts))


def _words() -> list[str]:
    parser = argparse.ArgumentParser(prog="tests/mutants", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("word", nargs="*", help="play only mutants whose description has such a word; write nothing")
    words: list[str] = parser.parse_args().word
    return words


if __name__ == "__main__":
    sys.exit(main())
