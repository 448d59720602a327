"""Paths of the checkout and its tests, copies of its sources, and a call of pip."""

import importlib.util
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent


def script(path: Path) -> ModuleType:
    """A script, which belongs to no package, as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def source_files() -> list[str]:
    """The repository's files, also new ones, but not those that git ignores."""
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return sorted({name for name in listed.split("\0") if name and (ROOT / name).is_file()})


def copied_sources(folder: Path, below: str = "") -> Path:
    """Copy the sources whose path starts with `below`; a build may write into the copy. Return the copy's folder."""
    for name in source_files():
        if name.startswith(below):
            copy = folder / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy)
    return folder / below


def pip(python: str | Path, *arguments: object) -> None:
    """Run pip in an interpreter's environment. AssertionError with pip's output if it fails."""
    command = [str(python), "-m", "pip", "--disable-pip-version-check", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"pip {' '.join(map(str, arguments))}:\n{done.stdout}{done.stderr}"
