"""Names in experiments and commands: built-in, of users' modules, and of packages that may be missing."""

import json
import re
import sys
import sysconfig
import tomllib
import wave
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from pausefl.cli.registries import REGISTRIES
from pausefl.experiment.experiment import parse_experiment
from pausefl.extras import PACKAGES, require
from pausefl.runtime.client.plan import client_plan
from pausefl.runtime.client.privacy import open_privacies
from pausefl.runtime.client.process import make_trainers
from pausefl_process.registry import Registry
from pausefl_proto.errors import ConfigError
from rigs.command import python
from rigs.places import ROOT
from rigs.refusals import refused

THINGS = Registry("things", {"dict": dict, "ordered": "collections:OrderedDict"}, base="builtins:dict")

ADDED = '''
"""more_pausefl.py: what a package adds."""

import abc
from collections import Counter

from pausefl_server.selection.policies.baselines import Random


class Again(Random):
    """Choose at random, under another name."""


class Sets:
    Counter = Counter


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


def install(site: Path, name: str, version: str, entry_points: str) -> None:
    about = site / f"{name.replace('-', '_')}-{version}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (about / "entry_points.txt").write_text(entry_points)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an installed distribution that adds names."""
    install(tmp_path / "site", "more-pausefl", "1.2", ENTRY_POINTS)
    (tmp_path / "site/more_pausefl.py").write_text(ADDED)
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.delitem(sys.modules, "more_pausefl", raising=False)
    return tmp_path / "site"


def test_imports_may_be_late_and_errors_in_modules_name_their_line(own_module: Callable[[str, str], Path]) -> None:
    assert THINGS.find("dict", "thing") is dict
    assert THINGS.find("ordered", "thing").__name__ == "OrderedDict"
    assert list(THINGS) == ["dict", "ordered"]
    file = own_module("half_done", "first = 1\nsecond = first / 0\n")
    with refused(f"ZeroDivisionError: division by zero ({file}:2)"):
        THINGS.find("half_done:first", "some.thing")


def test_an_installed_package_adds_names_but_replaces_none(package: Path) -> None:
    assert THINGS.find("counter", "thing").__name__ == "Counter"
    assert THINGS.find("dict", "thing") is dict
    assert THINGS.code_of("counter") == "more_pausefl:Counter"
    assert THINGS.entries()[:3] == [
        ("dict", "built in (not replaced by package more-pausefl 1.2)"),
        ("ordered", "built in"),
        ("counter", "package more-pausefl 1.2"),
    ]


def test_a_name_that_two_packages_add_is_refused_in_one_line_with_both(package: Path) -> None:
    install(package, "other-pausefl", "0.3", "[pausefl.things]\ncounter = other_pausefl:Counter\n")
    sys.path.append(str(package / "anew"))  # as after another installation
    both = "more_pausefl:Counter (package more-pausefl 1.2) and other_pausefl:Counter (package other-pausefl 0.3)"
    message = f'some.thing = "counter": stands for {both}: must be one of these, as "package.module:name"'
    for look in (THINGS.find, THINGS.check_name):
        with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
            look("counter", "some.thing")
    assert THINGS.find("more_pausefl:Sets.Counter", "some.thing").__name__ == "Counter"  # within another class


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ORDRED", "did you mean ordered? It must be one of dict, ordered, counter, missing,"),
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


@pytest.mark.parametrize("registry", REGISTRIES[:-1], ids=lambda registry: registry.kind)
def test_everything_built_in_is_fit(registry: Registry) -> None:
    """Except observers, the last registry: their packages may be missing."""
    for name in registry:
        assert callable(registry.find(name, "key"))


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


@pytest.fixture(scope="module")
def distributions() -> Mapping[str, list[str]]:
    """The distributions that bring each package."""
    return packages_distributions()


@pytest.mark.parametrize("extra", PACKAGES)
def test_the_packages_of_an_extra_are_those_of_the_project(extra: str, distributions: Mapping[str, list[str]]) -> None:
    if missing := [package for package in PACKAGES[extra] if package not in distributions]:
        pytest.skip(f"{', '.join(missing)}: not installed")
    declared = {re.split(r"[<>=!~]", r)[0].lower() for r in PROJECT["optional-dependencies"][extra]}
    # Several distributions may bring parts of one package, as those of MLflow do.
    brought = [{each.lower().replace("_", "-") for each in distributions[package]} for package in PACKAGES[extra]]
    assert all(not names.isdisjoint(declared) for names in brought)
    assert declared <= set().union(*brought)


COMMANDS = [
    (["report", "nothing"], "matplotlib", "report"),
    (["run", "demo"], "matplotlib", "report"),
    (["run", "demo"], "torch", "client"),
    (["compare", "demo", "--policies", "pause"], "jinja2", "report"),
    (["simulate", "demo", "--rounds", "2"], "numba", "server"),
    (["audit", "demo"], "scipy", "audit"),
    (["audit", "demo"], "pausefl_audit", "audit"),
    (["reproduce", "--list"], "pausefl_reproduce", "reproduce"),
    (["tune", "demo"], "pausefl_tune", "tune"),
    (["allocation", "demo", "--shared", "x"], "pausefl_allocation", "allocation"),
    (["replay", "nothing"], "pausefl_offline", "replay"),
    (["fit-latency", "nothing"], "pausefl_offline", "latency"),
    (["bench", "scale"], "psutil", "bench"),
    (["evaluator", "demo"], "torch", "evaluator"),
]
# Runs each command in an interpreter that cannot find its package, as if it had never been installed.
WITHOUT = """
import contextlib, io, json, sys
commands = json.loads(sys.argv[1])
hidden = {package for _, package, _ in commands}
sys.modules.update(dict.fromkeys(hidden))
from pausefl.cli import main
for package in hidden:
    del sys.modules[package]
for arguments, package, _ in commands:
    sys.modules[package], said = None, io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.suppress(SystemExit):
        main(arguments)
    print(json.dumps([said.getvalue()]))
    del sys.modules[package]
"""


def test_a_command_says_what_to_install(tmp_path: Path) -> None:
    printed = python("-c", WITHOUT, json.dumps(COMMANDS), cwd=tmp_path).splitlines()
    told = [json.loads(line) for line in printed if line.startswith("[")]
    for (_, package, extra), (said,) in zip(COMMANDS, told, strict=True):
        assert said.count("\n") == 1, said
        assert re.search(rf'pausefl: .*{package}.*: not installed; pip install "pausefl\[.*{extra}.*\]"', said)
    assert not list(tmp_path.iterdir())


def test_every_missing_package_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pausefl.extras.find_spec", lambda _: None)
    packages = "jinja2, matplotlib, psutil, scipy"
    with pytest.raises(ConfigError, match=rf'^{packages}: not installed; pip install "pausefl\[report,bench\]"$'):
        require("report", "bench")


def test_a_client_without_its_sampler_does_not_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opendp.prelude", None)  # as if it had never been installed
    options = {"workload.examples": 40, "privacy.sampler": "opendp"}
    plan = client_plan(parse_experiment("[clients]\ncount = 2\n[selection]\nm = 1\n", options))
    with ExitStack() as closing, pytest.raises(ConfigError, match=r'privacy\.sampler = "opendp": needs the extra'):
        open_privacies(plan, make_trainers(plan.training, ["client-000"]), tmp_path, closing)
    assert not list(tmp_path.iterdir())
