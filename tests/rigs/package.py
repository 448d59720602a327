"""The project as others get it: its sources copied out of the repository, and pip run in an interpreter."""

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def source_files() -> list[str]:
    """The files of the repository, new ones too, without what git ignores."""
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return sorted({name for name in listed.split("\0") if name and (ROOT / name).is_file()})


def copied_sources(folder: Path, below: str = "") -> Path:
    """A copy of the sources, or of those below a folder of them, that a build may write into."""
    for name in source_files():
        if name.startswith(below):
            copy = folder / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy)
    return folder / below


def pip(python: str | Path, *arguments: object) -> None:
    """Run pip in an interpreter's environment; AssertionError with what it said if it fails."""
    command = [str(python), "-m", "pip", "--disable-pip-version-check", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"pip {' '.join(map(str, arguments))}:\n{done.stdout}{done.stderr}"
