"""Every command line that the documents show is one that the command line and the Makefile take."""

import argparse
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pausefl import cli
from pausefl.bench import BENCHMARKS
from pausefl.config.experiment import load_experiment
from pausefl.config.server_records import check_policies
from pausefl.config.toml_source import preset_names
from pausefl_proto.errors import ConfigError
from pausefl_server.selection import policy_class

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(ROOT / "docs").glob("*.md"),
    *(ROOT / "deploy").glob("*.md"),
]
ASSIGNMENT = re.compile(r"[A-Z_]+=")


def command_lines(text: str) -> Iterator[list[str]]:
    """The words of every `pausefl` and `make` in fenced blocks, without what a shell does with them."""
    for block in re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        without_substitutions = re.sub(r"\$\([^)]*\)", "", block)
        for line in without_substitutions.replace("\\\n", " ").splitlines():
            if not re.match(rf"\s*({ASSIGNMENT.pattern}\S*\s+)*(\.venv/bin/)?(pausefl|make)\s", line):
                continue
            words = shlex.split(re.split(r"\s[|&>;]", line)[0], comments=True)
            while ASSIGNMENT.match(words[0]):
                words = words[1:]
            yield [words[0].removeprefix(".venv/bin/"), *words[1:]]


DOCUMENTED = sorted(
    {(path.name, shlex.join(words)) for path in DOCUMENTS for words in command_lines(path.read_text("utf-8"))}
)
PAUSEFL = [case for case in DOCUMENTED if case[1].startswith("pausefl ")]
MAKE = [case for case in DOCUMENTED if case[1].startswith("make ")]


def check(options: argparse.Namespace) -> None:
    """Raise ConfigError or AssertionError where a preset, key, policy or benchmark named does not exist."""
    config = getattr(options, "config", None)
    if config is not None and not config.endswith(".toml") and "/" not in config:
        assert config in preset_names()
        experiment = load_experiment(config, getattr(options, "overrides", []))
        check_policies(experiment)
    for name in getattr(options, "policies", "").split(","):
        if name:
            policy_class(name)
    if hasattr(options, "payload_bytes"):
        assert options.name in BENCHMARKS


def test_there_are_commands_to_check() -> None:
    assert len(PAUSEFL) > 20
    assert len(MAKE) > 5
    assert ("README.md", "pausefl run demo --set selection.policy=fastest") in PAUSEFL


@pytest.mark.parametrize(("document", "line"), PAUSEFL)
def test_a_documented_command_is_one_that_pausefl_takes(document: str, line: str) -> None:
    try:
        options = cli.parser().parse_args(shlex.split(line)[1:])
    except SystemExit:
        pytest.fail(f"{document}: the parser refuses {line}")
    check(options)


@pytest.mark.parametrize(("document", "line"), MAKE)
def test_a_documented_target_is_one_that_make_knows(document: str, line: str) -> None:
    arguments = shlex.split(line)[1:]
    done = subprocess.run(["make", "-n", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{document}: {done.stderr}"


@pytest.mark.parametrize(
    "line", ["pausefl run demo --unknown 1", "pausefl run no-such-preset", "pausefl run demo --set server.prot=1"]
)
def test_a_wrong_command_is_found(line: str) -> None:
    """Or the tests above could not fail."""
    with pytest.raises((SystemExit, AssertionError, ConfigError)):
        check(cli.parser().parse_args(shlex.split(line)[1:]))
