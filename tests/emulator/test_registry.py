"""What experiments name: built in, of the user's own modules, and added by an installed package."""

import re
import sys
import sysconfig
import wave
from collections.abc import Callable
from pathlib import Path

import pytest

from pausefl.experiment.registries import REGISTRIES
from pausefl_process.registry import NamedEntry, Registry
from pausefl_proto.errors import ConfigError
from rigs.refusals import refused

THINGS = Registry("things", {"dict": dict, "ordered": "collections:OrderedDict"}, base="builtins:dict")

ADDED = '''
"""more_pausefl.py: what a package adds."""

import abc
from collections import Counter

from pausefl_server.selection.policies.uniform import Random


class Again(Random):
    """Choose at random, under another name."""


class Unfinished(dict, abc.ABC):
    @abc.abstractmethod
    def finish(self): ...


number = 3
'''
ENTRY_POINTS = """
[pausefl.policies]
again = more_pausefl:Again

[pausefl.things]
counter = more_pausefl:Counter
dict = more_pausefl:Again
number = more_pausefl:number
missing = more_pausefl:missing
unfinished = more_pausefl:Unfinished
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which a distribution is installed that adds names."""
    about = tmp_path / "site/more_pausefl-1.2.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: more-pausefl\nVersion: 1.2\n")
    (about / "entry_points.txt").write_text(ENTRY_POINTS)
    (tmp_path / "site/more_pausefl.py").write_text(ADDED)
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.delitem(sys.modules, "more_pausefl", raising=False)
    return tmp_path / "site"


def test_what_is_built_in_may_be_imported_late() -> None:
    assert THINGS.find("dict", "thing") is dict
    assert THINGS.find("ordered", "thing").__name__ == "OrderedDict"
    assert list(THINGS) == ["dict", "ordered"]


def test_an_installed_package_adds_names_but_replaces_none(package: Path) -> None:
    assert THINGS.find("counter", "thing").__name__ == "Counter"
    assert THINGS.find("dict", "thing") is dict
    assert THINGS.code_of("counter") == "more_pausefl:Counter"
    assert THINGS.entries()[:3] == [
        NamedEntry("dict", "built in (not replaced by package more-pausefl 1.2)"),
        NamedEntry("ordered", "built in"),
        NamedEntry("counter", "package more-pausefl 1.2"),
    ]


def test_a_name_that_two_packages_add_is_refused_in_one_line_with_both(package: Path) -> None:
    about = package / "other_pausefl-0.3.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: other-pausefl\nVersion: 0.3\n")
    (about / "entry_points.txt").write_text("[pausefl.things]\ncounter = other_pausefl:Counter\n")
    sys.path.append(str(package / "anew"))  # as where a package was installed since
    both = "more_pausefl:Counter (package more-pausefl 1.2) and other_pausefl:Counter (package other-pausefl 0.3)"
    message = f'some.thing = "counter": stands for {both}: must be one of these, as "package.module:name"'
    for look in (THINGS.find, THINGS.check_name):
        with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
            look("counter", "some.thing")
    assert THINGS.find("more_pausefl:Counter", "some.thing").__name__ == "Counter"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ordred", "did you mean ordered? It must be one of dict, ordered, counter, missing,"),
        ("zzz", 'must be one of dict, ordered, counter, missing, number, unfinished, or "package.module:name"'),
        ("number", "must be a subclass of builtins.dict"),
        ("more_pausefl:number", "must be a subclass of builtins.dict"),
        ("missing", "cannot be imported (AttributeError: module 'more_pausefl' has no attribute 'missing')"),
        ("unfinished", "is abstract; it has no method `finish`"),
        ("no_such_module:Thing", "cannot be imported (ModuleNotFoundError: No module named 'no_such_module')"),
    ],
)
def test_a_name_that_stands_for_nothing_fit_is_one_clear_line(package: Path, name: str, message: str) -> None:
    with refused(f'some.thing = "{name}": {message}'):
        THINGS.find(name, "some.thing")


def test_what_was_imported_in_place_of_a_users_module_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sys", "wave"):
        (tmp_path / f"{name}.py").write_text("class Thing: ...")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    with pytest.raises(ConfigError, match=f"; it is {re.escape(wave.__file__)}$"):
        THINGS.find("wave:Thing", "some.thing")
    with pytest.raises(ConfigError, match=r"; it is built into Python$"):
        THINGS.find("sys:Thing", "some.thing")


def test_the_folders_are_named_in_which_a_module_was_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_python = [sysconfig.get_path(name) for name in ("stdlib", "purelib")]
    monkeypatch.setattr(sys, "path", [*of_python, "", str(tmp_path / "gone"), str(tmp_path)])
    searched = f"searched besides Python's own folders: {tmp_path}/gone, {tmp_path}"
    with pytest.raises(ConfigError, match=f"; {searched}; experiment.python_path can name others$"):
        THINGS.find("no_such_module:Thing", "some.thing")


def test_an_error_in_a_module_names_its_line(own_module: Callable[[str, str], Path]) -> None:
    file = own_module("half_done", "first = 1\nsecond = first / 0\n")
    with refused(f"ZeroDivisionError: division by zero ({file}:2)"):
        THINGS.find("half_done:first", "some.thing")


@pytest.mark.parametrize("registry", REGISTRIES, ids=lambda registry: registry.kind)
def test_everything_built_in_is_fit(registry: Registry) -> None:
    for name in registry:
        assert callable(registry.find(name, "key"))
