"""Every command line that the documents show is one that the command line and the Makefile take."""

import argparse
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.own import INSTRUMENTS
from pausefl import cli
from pausefl.bench import BENCHMARKS
from pausefl.experiment.loading import load_experiment
from pausefl.experiment.published import find_reproduction, reproductions
from pausefl.experiment.server_records import check_policies
from pausefl.experiment.toml_source import preset_names
from pausefl_proto.errors import ConfigError
from pausefl_server.selection import policy_class
from rigs.places import ROOT

DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *(ROOT / "docs").glob("*.md"),
    *(ROOT / "deploy").glob("*.md"),
    *(ROOT / "benchmarks").glob("*.md"),
    ROOT / "examples/README.md",
]
every_document = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
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


def shown(path: Path, program: str) -> list[str]:
    """The lines of a document's blocks that call a program, each once."""
    return sorted({shlex.join(words) for words in command_lines(path.read_text("utf-8")) if words[0] == program})


def named(path: Path, program: str) -> list[str]:
    """The calls of a program that a document's sentences name, each once."""
    return sorted({" ".join(words) for words in mentions(path.read_text("utf-8")) if words[0] == program})


def check(options: argparse.Namespace) -> None:
    """Raise ConfigError or AssertionError where a preset, key, policy or benchmark named does not exist."""
    config = getattr(options, "config", None)
    if config is not None and not config.endswith(".toml") and "/" not in config:
        assert config in {*preset_names(), *FIGURES}
        experiment = load_experiment(config, getattr(options, "overrides", []))
        check_policies(experiment)
    for name in (getattr(options, "policies", None) or "").split(","):
        if name and ":" not in name:  # a reader's own lies beside the reader's experiment
            policy_class(name)
    if getattr(options, "series", None) or getattr(options, "scale", None):
        find_reproduction(options.name)
    if hasattr(options, "payload_bytes"):
        assert options.name in BENCHMARKS


def test_every_instrument_that_a_document_names_is_there() -> None:
    named = {name for path in DOCUMENTS for name in re.findall(r"benchmarks\.own\s(\w+)", path.read_text("utf-8"))}
    assert named <= {*INSTRUMENTS, "all", "diff", "NAME"}
    assert {"all", "twin"} <= named


@every_document
def test_documented_commands_are_those_that_pausefl_takes(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for line in shown(path, "pausefl"):
        try:
            options = cli.parser().parse_args(shlex.split(line)[1:])
        except SystemExit:
            pytest.fail(f"the parser refuses {line}")
        check(options)
    for line in named(path, "pausefl"):
        check_mention(line, capsys)


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
        assert arguments[0] in {*BENCHMARKS, *preset_names(), *FIGURES}


@pytest.mark.parametrize("line", ["pausefl runn", "pausefl run CONFIG --unknown", "pausefl bench speed --json"])
def test_a_wrong_mention_is_found(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(AssertionError):
        check_mention(line, capsys)


@every_document
def test_documented_targets_are_those_that_make_knows(path: Path) -> None:
    for line in {*shown(path, "make"), *named(path, "make")}:
        command = ["make", "-n", *shlex.split(line)[1:]]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{line}: {done.stderr}"


@pytest.mark.parametrize(
    "line", ["pausefl run demo --unknown 1", "pausefl run no-such-preset", "pausefl run demo --set server.prot=1"]
)
def test_a_wrong_command_is_found(line: str) -> None:
    """Or the tests above could not fail."""
    with pytest.raises((SystemExit, AssertionError, ConfigError)):
        check(cli.parser().parse_args(shlex.split(line)[1:]))
