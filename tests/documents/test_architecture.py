"""docs/architecture.md is what the imports say."""

import importlib.util
import pkgutil
import re

from rigs.places import ROOT


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
