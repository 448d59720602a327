"""`make mutants`: break privacy in each way of the catalogue, see who notices, write benchmarks/privacy-mutants.md.

python tests/mutants [WORD...]      with words, only the mutants whose description has one of them; writes nothing

Some 20 minutes on two cores. What was found is kept in build/mutants.json, so that an interrupted run goes on
where it stopped; a change of the packages or of the catalogue starts it anew.
"""

import argparse
import hashlib
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

sys.path.insert(0, str(Path(__file__).parents[1]))

from mutants.running import MUTANTS, PACKAGES, ROOT, Mutant, Verdict, check_tree, table, try_mutant

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


class KeptVerdicts:
    """What was found so far, in a file; empty where the packages or the catalogue have changed since."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._tree = _digest()
        self._lock = Lock()
        stored = json.loads(file.read_text("utf-8")) if file.exists() else {}
        self._found: dict[str, list[str]] = stored["found"] if stored.get("tree") == self._tree else {}

    def of(self, mutant: Mutant) -> Verdict | None:
        """The verdict on a mutant; None if it was not tried yet."""
        found = self._found.get(mutant.why)
        return Verdict(mutant, *found) if found else None

    def add(self, verdict: Verdict) -> None:
        """Keep a verdict at once."""
        with self._lock:
            self._found[verdict.mutant.why] = [verdict.run, verdict.audit, verdict.tests]
            self._file.parent.mkdir(exist_ok=True)
            self._file.write_text(json.dumps({"tree": self._tree, "found": self._found}, indent=1), "utf-8")


def _digest() -> str:
    """SHA-256 over the packages' source and the catalogue."""
    source = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")]
    digest = hashlib.sha256()
    for file in sorted([*source, Path(__file__).with_name("catalogue.toml")]):
        digest.update(file.read_bytes())
    return digest.hexdigest()


if __name__ == "__main__":
    sys.exit(main())
