"""The breakages of catalogue.toml: each is put into a copy of the packages, and audit and tests are run against it."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
NOT_ASKED = "—"
MISSED = "misses it"

PACKAGES = ("proto", "process", "server", "client", "emulator", "plugins/pausefl-audit")
_TIMEOUT_S = 1800.0
# More than one chunk of noise, and no torch: the fork server starts fast.
_AUDITED = ("workload.model=synthetic", "workload.model_bytes=264000", "clients.count=2", "selection.m=1")
_UPLOADS = 400
# What a test says of broken code, which is no broken privacy.
_CRASH = re.compile(r"^E +(?:AttributeError|ImportError|NameError|SyntaxError)", re.MULTILINE)


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


MUTANTS = _read(Path(__file__).with_name("catalogue.toml"))


@dataclass(frozen=True)
class Verdict:
    """Who caught a mutant: what both audits said, and the first test that failed."""

    mutant: Mutant
    run: str
    """What the audit of a run that is dealt canaries said."""
    audit: str
    tests: str

    @property
    def survives(self) -> bool:
        """Whether it went unnoticed by all of them."""
        return {self.run, self.audit, self.tests} <= {MISSED, NOT_ASKED}


def try_mutant(mutant: Mutant) -> Verdict:
    """Show a mutant to all that may catch it."""
    with _copy() as copy:
        file = copy / mutant.file
        file.write_text(mutated(mutant, file.read_text("utf-8")), "utf-8")
        audit = [f"{unit}: {said}" for unit in mutant.audits if (said := _audit(copy, unit)) != MISSED]
        missed = MISSED if mutant.audits else NOT_ASKED
        run = _audit_of_a_run(copy, (*mutant.audits, "coordinate")[0])
        return Verdict(mutant, run, "; ".join(audit) or missed, _test(copy, mutant.tests))


def mutated(mutant: Mutant, text: str) -> str:
    """The text of its file with the breakage in place; ValueError unless `old` stands there exactly once."""
    if text.count(mutant.old) != 1:
        raise ValueError(f"{mutant.why}: {mutant.file} has {mutant.old!r} {text.count(mutant.old)} times, not once")
    return text.replace(mutant.old, mutant.new)


def check_tree(mutants: Sequence[Mutant]) -> None:
    """RuntimeError unless everything that mutants are shown to passes without any."""
    units, tests = {unit for m in mutants for unit in m.audits}, {test for m in mutants for test in m.tests}
    with _copy() as copy:
        said = {unit: _audit(copy, unit) for unit in units} | {"tests": _test(copy, sorted(tests))}
        said |= {f"run, {unit}": _audit_of_a_run(copy, unit) for unit in units}
    if wrong := {where: what for where, what in said.items() if what != MISSED}:
        raise RuntimeError(f"the tree as it is does not pass: {wrong}")


def table(verdicts: Sequence[Verdict]) -> str:
    """benchmarks/privacy-mutants.md."""
    rows = (
        f"| {v.mutant.why} | `{Path(v.mutant.file).name}` | {v.run} | {v.audit} | {_linked(v.tests)} |"
        for v in verdicts
    )
    return "\n".join([_HEAD.format(count=len(verdicts)), *rows, ""])


@contextmanager
def _copy() -> Iterator[Path]:
    """The packages in a folder of their own, with their compiled files, which stay valid."""
    with tempfile.TemporaryDirectory(prefix="pausefl-mutant-") as folder:
        for package in PACKAGES:
            shutil.copytree(ROOT / package, Path(folder) / package)
        yield Path(folder)


def _audit(copy: Path, unit: str) -> str:
    """What the audit complains of; `MISSED` where it does not."""
    changes = [a for change in (*_AUDITED, f"privacy.unit={unit}") for a in ("--set", change)]
    done = _python(copy, "-m", "pausefl", "audit", "demo", "--uploads", str(_UPLOADS), *changes)
    if done.returncode == 0:
        return MISSED
    if "Traceback" in done.stderr:  # broken code, not broken privacy
        raise RuntimeError(f"the audit crashed: {done.stderr[-2000:]}")
    last = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit code {done.returncode}"
    return last.removeprefix("pausefl: ").split(":")[0]


def _audit_of_a_run(copy: Path, unit: str) -> str:
    """What the canaries of a run tell, or why it does not come to its end; `MISSED` where it claims what it leaks."""
    with tempfile.TemporaryDirectory(prefix="pausefl-mutant-run-") as folder:
        done = _python(copy, str(Path(__file__).with_name("audit_of_a_run.py")), f"{folder}/run", unit)
    return MISSED if done.returncode == 0 else f"{unit}: {done.stderr.strip().splitlines()[-1]}"


def _test(copy: Path, tests: Sequence[str]) -> str:
    """The first test that fails; `MISSED` where none does."""
    done = _python(copy, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests)
    if done.returncode == 0:
        return MISSED
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    if found is None or _CRASH.search(done.stdout):
        raise RuntimeError(f"pytest ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return found[1]


def _python(copy: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    path = os.pathsep.join(str(copy / package) for package in PACKAGES)
    env = {**os.environ, "PYTHONPATH": path, "COLUMNS": "400", "TERM": "dumb"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)


def _linked(test: str) -> str:
    file, _, name = test.partition("::")
    return f"`{name.split('[')[0]}` ({Path(file).name})" if name else test


_HEAD = """# Who catches what: privacy broken on purpose

Written by `make mutants`, not by hand. Each of the {count} breakages below is made in a copy of the packages. Then a
run with canaries is played and audited, `pausefl audit` attacks the mechanism (where clip, noise, seed or what is sent
are broken), and a few test files are run. A cell names what was found first, such as why the run ended early. The tree
without a breakage passes all of them.

| breakage | in | caught by the audit of a run | caught by the audit of the mechanism | caught by the test |
|---|---|---|---|---|"""
