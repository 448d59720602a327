"""Every command line that the documents show is one that the command line and the Makefile take."""

import argparse
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pausefl import cli
from pausefl.bench import NAMES
from pausefl.config.loading import load_experiment
from pausefl.config.server_records import check_policies
from pausefl.config.toml_source import preset_names
from pausefl.published import find_reproduction, reproductions
from pausefl_proto.errors import ConfigError
from pausefl_server.selection import policy_class

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *(ROOT / "docs").glob("*.md"),
    *(ROOT / "deploy").glob("*.md"),
    ROOT / "examples/README.md",
]
FIGURES = {figure for each in reproductions() for figure in each.figures}
ASSIGNMENT = re.compile(r"[A-Z_]+=")
FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def command_lines(text: str) -> Iterator[list[str]]:
    """The words of every `pausefl` and `make` in fenced blocks, without what a shell does with them."""
    for language, block in FENCED.findall(text):
        if language not in {"", "sh", "bash", "console"}:
            continue
        without_substitutions = re.sub(r"\$\([^)]*\)", "", block)
        for line in re.split(r"\n|&&", without_substitutions.replace("\\\n", " ")):
            if not re.match(rf"\s*({ASSIGNMENT.pattern}\S*\s+)*(\.venv/bin/)?(pausefl|make)\s", line):
                continue
            words = shlex.split(re.split(r"\s[|&>;]", line)[0], comments=True)
            while ASSIGNMENT.match(words[0]):
                words = words[1:]
            yield [words[0].removeprefix(".venv/bin/"), *words[1:]]


def mentions(text: str) -> Iterator[list[str]]:
    """The words of every `pausefl` and `make` that a sentence names; names in capitals stand for what a user puts."""
    for code in re.findall(r"`([^`]+)`", FENCED.sub("", text)):
        words = [word for word in code.split() if not ASSIGNMENT.match(word)]
        if len(words) > 1 and words[0] in {"pausefl", "make"}:
            yield words


DOCUMENTED = sorted(
    {(path.name, shlex.join(words)) for path in DOCUMENTS for words in command_lines(path.read_text("utf-8"))}
)
PAUSEFL = [case for case in DOCUMENTED if case[1].startswith("pausefl ")]
MENTIONED = sorted({(path.name, " ".join(words)) for path in DOCUMENTS for words in mentions(path.read_text("utf-8"))})
MAKE = sorted({case for case in (*DOCUMENTED, *MENTIONED) if case[1].startswith("make ")})


def check(options: argparse.Namespace) -> None:
    """Raise ConfigError or AssertionError where a preset, key, policy or benchmark named does not exist."""
    config = getattr(options, "config", None)
    if config is not None and not config.endswith(".toml") and "/" not in config:
        assert config in {*preset_names(), *FIGURES}
        experiment = load_experiment(config, getattr(options, "overrides", []))
        check_policies(experiment)
    for name in (getattr(options, "policies", None) or "").split(","):
        if name:
            policy_class(name)
    if getattr(options, "series", None) or getattr(options, "scale", None):
        find_reproduction(options.name)
    if hasattr(options, "payload_bytes"):
        assert options.name in NAMES


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


def check_mention(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """AssertionError where the command, one of its options, or the benchmark or preset it names does not exist."""
    command, *arguments = line.split()[1:]
    if command.startswith("-"):
        return
    with pytest.raises(SystemExit) as ended:
        cli.parser().parse_args([command, "--help"])
    assert ended.value.code == 0, f"there is no pausefl {command}"
    known = re.findall(r"--[a-z-]+", capsys.readouterr().out)
    for option in (argument for argument in arguments if argument.startswith("--")):
        assert option.partition("=")[0] in known, f"pausefl {command} takes no {option}"
    if arguments and re.fullmatch(r"[a-z_]+", arguments[0]):
        assert arguments[0] in {*NAMES, *preset_names(), *FIGURES}


@pytest.mark.parametrize(("document", "line"), [case for case in MENTIONED if case[1].startswith("pausefl ")])
def test_a_command_that_a_sentence_names_is_there(document: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    del document
    check_mention(line, capsys)


@pytest.mark.parametrize("line", ["pausefl runn", "pausefl run CONFIG --unknown", "pausefl bench speed --json"])
def test_a_wrong_mention_is_found(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(AssertionError):
        check_mention(line, capsys)


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
