"""Packages: docs/architecture.md is what the imports say, and no package has too many entries."""

import importlib.util
import pkgutil
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_the_drawing_is_what_the_imports_say() -> None:
    spec = importlib.util.spec_from_file_location("draw_architecture", ROOT / "docs" / "draw_architecture.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    written = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    assert module.drawn() == written, "python docs/draw_architecture.py draws it afresh"


def names_in(page: str) -> list[str]:
    """The modules, classes and functions that a page names in full."""
    return sorted(set(re.findall(r"`(pausefl\w*(?:\.\w+)+)`", page)))


def is_there(name: str) -> bool:
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


def test_every_name_on_the_page_is_in_the_code() -> None:
    names = names_in((ROOT / "docs" / "architecture.md").read_text("utf-8"))
    assert "pausefl_server.rounds.coordinator.Coordinator._play" in names
    assert [name for name in names if not is_there(name)] == []


def test_a_name_that_is_not_in_the_code_is_noticed() -> None:
    page = "`pausefl_server.rounds.none` `pausefl_server.service.none` `pausefl_server.service.serve`"
    assert [is_there(name) for name in names_in(page)] == [False, False, True]


# pausefl itself is the face of the library: three modules, the package file and one folder for each subject.
EMULATOR_PACKAGES = sorted(
    path.parent.relative_to(ROOT).as_posix() for path in (ROOT / "emulator/pausefl").glob("*/**/__init__.py")
)


@pytest.mark.parametrize("package", EMULATOR_PACKAGES)
def test_a_package_of_the_emulator_holds_at_most_a_dozen_entries(package: str) -> None:
    entries = [path.name for path in (ROOT / package).iterdir() if path.name not in {"__pycache__", "py.typed"}]
    assert len(entries) <= 12, sorted(entries)
