"""A package that is not installed is named in one line, with what to install."""

import re
import subprocess
import sys
import tomllib
from contextlib import ExitStack
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from pausefl.experiment.loading import parse_experiment
from pausefl.extras import PACKAGES, require
from pausefl.runtime.client.plan import client_plan
from pausefl.runtime.client.privacy import open_privacies
from pausefl.runtime.client.process import make_trainers
from pausefl_proto.errors import ConfigError
from rigs.places import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


@pytest.mark.parametrize("extra", PACKAGES)
def test_the_packages_of_an_extra_are_those_of_the_project(extra: str) -> None:
    distributions = packages_distributions()
    if missing := [package for package in PACKAGES[extra] if package not in distributions]:
        pytest.skip(f"{', '.join(missing)}: not installed")
    declared = {re.split(r"[<>=!~]", r)[0].lower() for r in PROJECT["optional-dependencies"][extra]}
    # Several distributions may bring parts of one package, as those of MLflow do.
    brought = [{each.lower().replace("_", "-") for each in distributions[package]} for package in PACKAGES[extra]]
    assert all(not names.isdisjoint(declared) for names in brought)
    assert declared <= set().union(*brought)


@pytest.mark.parametrize(
    ("arguments", "package", "extra"),
    [
        (["run", "demo"], "matplotlib", "report"),
        (["run", "demo"], "torch", "client"),
        (["compare", "demo", "--policies", "pause"], "jinja2", "report"),
        (["simulate", "demo", "--rounds", "2"], "numba", "server"),
        (["report", "nothing"], "matplotlib", "report"),
        (["audit", "demo"], "scipy", "audit"),
        (["audit", "demo"], "pausefl_audit", "audit"),
        (["reproduce", "--list"], "pausefl_reproduce", "reproduce"),
        (["tune", "demo"], "pausefl_tune", "tune"),
        (["bench", "scale"], "psutil", "bench"),
        (["evaluator", "demo"], "torch", "evaluator"),
    ],
)
def test_a_command_says_what_to_install(arguments: list[str], package: str, extra: str, tmp_path: Path) -> None:
    """The package is hidden from the interpreter, as if it had never been installed."""
    code = f"import sys; sys.modules[{package!r}] = None; from pausefl.cli import main; main({arguments!r})"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert re.search(rf'pausefl: .*{package}.*: not installed; pip install "pausefl\[.*{extra}.*\]"', done.stderr)
    assert not list(tmp_path.iterdir())


def test_every_missing_package_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pausefl.extras.find_spec", lambda _: None)
    with pytest.raises(
        ConfigError, match=r'^jinja2, matplotlib, psutil, scipy: not installed; pip install "pausefl\[report,bench\]"$'
    ):
        require("report", "bench")


def test_a_client_without_its_sampler_does_not_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opendp.prelude", None)  # as if it had never been installed
    options = {"workload.examples": 40, "privacy.sampler": "opendp"}
    plan = client_plan(parse_experiment("[clients]\ncount = 2\n[selection]\nm = 1\n", options))
    trainers = make_trainers(plan.training, ["client-000"])
    with ExitStack() as closing, pytest.raises(ConfigError, match=r'privacy\.sampler = "opendp": needs the extra'):
        open_privacies(plan.privacy, trainers, tmp_path, closing)
    assert not list(tmp_path.iterdir())
