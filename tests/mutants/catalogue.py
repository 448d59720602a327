"""The breakages of catalogue.toml: what each replaces by what, and who is shown it."""

import tomllib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Mutant:
    """One breakage: `old`, which stands once in `file`, becomes `new`."""

    why: str
    """What is broken, as the table says it."""
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    """The test files that are run against it."""
    audits: tuple[str, ...] = ()
    """The units in which `pausefl audit` is asked too: where clip, noise, seed or what is sent are broken."""


def _read(path: Path) -> tuple[Mutant, ...]:
    return tuple(
        Mutant(t["why"], t["file"], t["old"], t["new"], tuple(t["tests"]), tuple(t.get("audits", ())))
        for t in tomllib.loads(path.read_text("utf-8"))["mutant"]
    )


MUTANTS = _read(Path(__file__).with_suffix(".toml"))
