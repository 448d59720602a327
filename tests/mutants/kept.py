"""Keeps the verdicts of an interrupted `make mutants`, so that it goes on where it stopped."""

import hashlib
import json
from pathlib import Path
from threading import Lock

from mutants.catalogue import Mutant
from mutants.running import PACKAGES, ROOT, Verdict


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
