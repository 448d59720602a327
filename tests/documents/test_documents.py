"""Documents: links lead somewhere, the code accepts snippets and commands, and the pages build."""

import argparse
import os
import re
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from pathlib import Path

import pytest

from benchmarks.own import INSTRUMENTS
from pausefl import cli
from pausefl.bench import BENCHMARKS
from pausefl.cli.registries import REGISTRIES
from pausefl.experiment.experiment import load_experiment, parse_experiment
from pausefl.experiment.server_records import check_policies
from pausefl.experiment.toml_source import preset_names
from pausefl_client.privacy.ledger import Ledger
from pausefl_process.events import EVENT_TYPES
from pausefl_proto.budget import Budget
from pausefl_proto.errors import ConfigError
from pausefl_reproduce.published import find_reproduction, reproductions
from pausefl_server.selection import policy_class
from rigs.command import python
from rigs.places import ROOT

FOLDERS = ("benchmarks", "deploy", "docs", "examples")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))])
NAMES = [path.relative_to(ROOT).as_posix() for path in DOCUMENTS]
WRITTEN = [path for path in DOCUMENTS if path.parent.name != "reference"]
PARSER = cli.whole_parser()
every_written_document = pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.relative_to(ROOT).as_posix())
SMALLER = {
    '"experiment.rounds": 20': '"experiment.rounds": 2, "clients.count": 3, "selection.m": 2',
    "ROUNDS = 10_000_000": "ROUNDS = 1000",
}
"""Text shown in snippets -> the text that the test runs in its place."""
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)


@cache
def anchors(path: Path) -> set[str]:
    """The anchors of a document's headings, as forges and the built pages make them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", path.read_text("utf-8")), re.MULTILINE)
    slugs: list[str] = []
    for heading in headings:
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading.replace("`", ""))
        slug = re.sub(r"[^\w\- ]", "", words.strip().lower()).replace(" ", "-")
        seen = slugs.count(slug)
        slugs += [slug, f"{slug}-{seen}"] if seen else [slug]
    return set(slugs)


def links(path: Path) -> Iterator[str]:
    """The relative links of a document."""
    prose = re.sub(r"`[^`\n]*`", "", FENCE.sub("", path.read_text("utf-8")))
    for target in re.findall(r"\]\(([^()\s]+(?:\([^()\s]*\))?)\)", prose):
        if not re.match(r"[a-z]+:", target):
            yield target


def broken(path: Path, target: str) -> str:
    """What is wrong with a link; empty if nothing is."""
    file, _, anchor = target.partition("#")
    to = (path.parent / file).resolve() if file else path
    if not to.exists():
        return f"{target}: no such file"
    if not to.is_relative_to(ROOT):
        return f"{target}: leads out of the repository"
    return f"{target}: no such heading" if anchor and to.suffix == ".md" and anchor not in anchors(to) else ""


@cache
def snippets(language: str) -> list[tuple[str, str]]:
    """(document, text) of each fenced block in a language."""
    return [
        (name, re.sub(rf"^{indent}", "", body, flags=re.MULTILINE))
        for name, path in zip(NAMES, DOCUMENTS, strict=True)
        for indent, found, body in FENCE.findall(path.read_text("utf-8"))
        if found == language
    ]


def longest(found: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """All snippets except those whose lines are all part of another snippet."""
    lines = [set(text.splitlines()) for _, text in found]
    return [case for case, own in zip(found, lines, strict=True) if not any(own < other for other in lines)]


STORIES = {"docs/own-fleet.md", "docs/own-policy.md"}
"""Pages that test_stories types from start to end."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A reader's folder, with the files that snippets name: modules shown in documents, and measured delays."""
    for _, text in snippets("python"):
        if named := re.match(r'"""(\w+\.py): ', text):
            (tmp_path / named[1]).write_text(text, "utf-8")
    pings = (f"device-{k},{20 + k}\n" for k in range(30))
    (tmp_path / "pings.csv").write_text("device,ms\n" + "".join(pings), "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize("path", DOCUMENTS, ids=NAMES)
def test_links_lead_somewhere(path: Path) -> None:
    assert [wrong for target in links(path) if (wrong := broken(path, target))] == []


def test_broken_links_are_found(tmp_path: Path) -> None:
    """Otherwise the test above could not fail."""
    readme = ROOT / "README.md"
    assert len(list(links(readme))) > 10
    assert broken(readme, "docs/none.md") == "docs/none.md: no such file"
    assert broken(readme, "docs/network.md#none") == "docs/network.md#none: no such heading"
    assert broken(readme, "../x.md").endswith("no such file")
    assert broken(readme, "docs/network.md#bandwidth") == ""


@pytest.mark.parametrize("page", sorted({page for page, _ in snippets("toml")}))
def test_toml_snippets_are_parts_of_experiments(page: str, folder: Path) -> None:
    for text in (text for found, text in snippets("toml") if found == page):
        check_policies(parse_experiment(text))


@pytest.mark.parametrize(
    "text", [pytest.param(text, id=page) for page, text in longest(snippets("python")) if page not in STORIES]
)
@pytest.mark.slow
def test_a_python_snippet_runs(text: str, folder: Path) -> None:
    for shown, run in SMALLER.items():
        text = text.replace(shown, run)
    python("-W", "error", "-c", text, cwd=folder)


def test_a_ledger_can_be_read_as_shown(tmp_path: Path) -> None:
    (statement,) = re.findall(r'sqlite3 [^"]*"(SELECT [^"]*)"', (ROOT / "docs/privacy.md").read_text("utf-8"))
    holder = {"client_id": "client-000", "data": "digits"}
    Ledger(tmp_path / "client-000.db", Budget(10.0, 0.04), unit="vector", **holder).close()
    with closing(sqlite3.connect(tmp_path / "client-000.db")) as database:
        assert database.execute(statement).fetchall() == []


def test_every_command_is_shown_in_use_and_every_instrument_that_is_named_is_there() -> None:
    used = " ".join(path.read_text("utf-8") for path in DOCUMENTS)
    (sub,) = (action for action in PARSER._actions if isinstance(action.choices, dict))
    assert sub.choices is not None
    assert [name for name in sub.choices if not re.search(rf"pausefl {name}\b", used)] == []
    named = {name for path in DOCUMENTS for name in re.findall(r"benchmarks\.own\s(\w+)", path.read_text("utf-8"))}
    assert named <= {*INSTRUMENTS, "all", "diff", "NAME"}
    assert {"all", "twin"} <= named


PAGES = {
    "aggregation": {"aggregation_rules", "server_optimizers"},
    "asynchronous": {"staleness_rules"},
    "behaviours": {"availabilities", "behaviours"},
    "network": {"delays"},
    "partitions": {"partitioners"},
    "regret": {"drifts"},
    "selection": {"policies"},
    "training": {"training_methods"},
    "workloads": {"datasets", "models"},
}
"""The kinds of names that each page of docs/ lists."""


def test_every_built_in_name_stands_on_the_page_of_its_kind() -> None:
    names = {
        page: [name for each in REGISTRIES if each.kind in kinds for name in each] for page, kinds in PAGES.items()
    }
    for page, known in {**names, "events": [*EVENT_TYPES]}.items():
        text = (ROOT / f"docs/{page}.md").read_text("utf-8")
        assert [name for name in known if f"`{name}`" not in text] == [], f"docs/{page}.md lacks them"
    for page in ("papers", "selection"):
        rows = re.findall(r"^\| `([\w-]+)` ", (ROOT / f"docs/{page}.md").read_text("utf-8"), re.MULTILINE)
        assert set(rows).difference(*REGISTRIES) == set(), f"docs/{page}.md has rows of names that are gone"


def test_every_page_is_reached_from_the_readme() -> None:
    reached, new = set[Path](), {ROOT / "README.md"}
    while new:
        reached |= new
        linked = {(path.parent / target.partition("#")[0]).resolve() for path in new for target in links(path)}
        new = {path for path in linked if path.suffix == ".md"} - reached
    assert [path.relative_to(ROOT).as_posix() for path in DOCUMENTS if path not in reached] == []


FIGURES = {figure for each in reproductions() for figure in each.figures}
ASSIGNMENT = re.compile(r"[A-Z_]+=")


def command_lines(text: str) -> Iterator[list[str]]:
    """The words of each `pausefl` and `make` command in fenced blocks, without the shell's own syntax."""
    for _, language, block in FENCE.findall(text):
        if language not in {"", "sh", "bash", "console"}:
            continue
        for line in re.split(r"\n|&&", re.sub(r"\$\([^)]*\)", "", block).replace("\\\n", " ")):
            if not re.match(rf"\s*({ASSIGNMENT.pattern}\S*\s+)*(\.venv/bin/)?(pausefl|make)\s", line):
                continue
            words = shlex.split(re.split(r"\s[|&>;]", line)[0], comments=True)
            while ASSIGNMENT.match(words[0]):
                words = words[1:]
            yield [words[0].removeprefix(".venv/bin/"), *words[1:]]


def shown(path: Path, program: str) -> list[str]:
    """The commands of a program in a document's blocks, each once."""
    return sorted({shlex.join(words) for words in command_lines(path.read_text("utf-8")) if words[0] == program})


def named(path: Path, program: str) -> list[str]:
    """The commands of a program in a document's sentences, each once. Words in capitals are placeholders."""
    codes = re.findall(r"`([^`]+)`", FENCE.sub("", path.read_text("utf-8")))
    calls = [[word for word in code.split() if not ASSIGNMENT.match(word)] for code in codes]
    return sorted({" ".join(words) for words in calls if len(words) > 1 and words[0] == program})


def check(options: argparse.Namespace) -> None:
    """Raise ConfigError or AssertionError if a preset, key, policy or benchmark does not exist."""
    config = getattr(options, "config", None)
    if config is not None and not config.endswith(".toml") and "/" not in config:
        assert config in {*preset_names(), *FIGURES}
        check_policies(load_experiment(config, getattr(options, "overrides", [])))
    for name in (getattr(options, "policies", None) or "").split(","):
        if name and ":" not in name:  # a reader's own policy lies beside the experiment
            policy_class(name)
    if getattr(options, "series", None) or getattr(options, "scale", None):
        find_reproduction(options.name)
    if hasattr(options, "payload_bytes"):
        assert options.name in BENCHMARKS


@every_written_document
def test_documented_commands_are_those_that_pausefl_takes(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for line in shown(path, "pausefl"):
        try:
            options = PARSER.parse_args(shlex.split(line)[1:])
        except SystemExit:
            pytest.fail(f"the parser refuses {line}")
        check(options)
    for line in named(path, "pausefl"):
        check_mention(line, capsys)


def check_mention(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Raise AssertionError if the command, an option, or the benchmark or preset named does not exist."""
    command, *arguments = line.split()[1:]
    if command.startswith("-"):
        return
    with pytest.raises(SystemExit) as ended:
        PARSER.parse_args([command, "--help"])
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


@every_written_document
def test_documented_targets_are_those_that_make_knows(path: Path) -> None:
    for line in {*shown(path, "make"), *named(path, "make")}:
        command = ["make", "-n", *shlex.split(line)[1:]]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{line}: {done.stderr}"


@pytest.mark.parametrize(
    "line", ["pausefl run demo --unknown 1", "pausefl run no-such-preset", "pausefl run demo --set server.prot=1"]
)
def test_a_wrong_command_is_found(line: str) -> None:
    """Otherwise the tests above could not fail."""
    with pytest.raises((SystemExit, AssertionError, ConfigError)):
        check(PARSER.parse_args(shlex.split(line)[1:]))


def test_the_pages_build_and_a_broken_link_is_an_error(tmp_path: Path) -> None:
    """Built as by `make docs`. mkdocs writes all pages, names what is wrong, and then fails."""
    pytest.importorskip("mkdocs")
    config = (ROOT / "mkdocs.yml").read_text("utf-8")
    for built in ("docs-source", "docs"):
        config = config.replace(f"_dir: build/{built}", f"_dir: {tmp_path / built}")
    for package in ("proto", "process", "server", "client", "emulator"):
        config = config.replace(f"{package},", f"{ROOT / package},").replace(f"{package}]", f"{ROOT / package}]")
    (tmp_path / "mkdocs.yml").write_text(config, "utf-8")
    assert python("docs/stage_site.py", str(tmp_path / "docs-source"), cwd=ROOT) == ""
    links = ["nowhere.md", "../README.md#nowhere"]
    with (tmp_path / "docs-source/docs/partitions.md").open("a", encoding="utf-8") as page:
        page.write("".join(f"[somewhere]({link})\n" for link in links))
    (options,) = re.findall(r"mkdocs build(.*)", (ROOT / "Makefile").read_text("utf-8"))
    words = [sys.executable, "-m", "mkdocs", "build", *options.split(), "--config-file", str(tmp_path / "mkdocs.yml")]
    quietly = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(words, cwd=ROOT, env=quietly, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    first, second = (line for line in done.stderr.splitlines() if line.startswith("WARNING"))
    assert all(f"'{link}'" in line for link, line in zip(links, (first, second), strict=True)), done.stderr
    assert "pausefl.Run" in (tmp_path / "docs/docs/reference/api.html").read_text("utf-8")
