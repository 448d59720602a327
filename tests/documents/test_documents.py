"""Documents: links lead somewhere, snippets are what the code takes, and every command, metric and preset occurs."""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pausefl import cli
from pausefl.experiment.loading import parse_experiment
from pausefl.experiment.server_records import check_policies
from pausefl_client.privacy.ledger import Ledger
from pausefl_proto.budget import Budget
from rigs.command import python
from rigs.places import ROOT

FOLDERS = ("benchmarks", "deploy", "docs", "examples")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))])
NAMES = [path.relative_to(ROOT).as_posix() for path in DOCUMENTS]
SMALLER = {
    '"experiment.rounds": 20': '"experiment.rounds": 2, "clients.count": 3, "selection.m": 2',
    "ROUNDS = 10_000_000": "ROUNDS = 1000",
}
"""What snippets show, and what the test runs in its place."""
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)


def prose(text: str) -> str:
    """A document without its code."""
    return re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))


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
    for target in re.findall(r"\]\(([^()\s]+(?:\([^()\s]*\))?)\)", prose(path.read_text("utf-8"))):
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
    if anchor and to.suffix == ".md" and anchor not in anchors(to):
        return f"{target}: no such heading"
    return ""


def snippets(language: str) -> list[tuple[str, str]]:
    """The fenced blocks in a language, with the document each is from."""
    return [
        (name, re.sub(rf"^{indent}", "", body, flags=re.MULTILINE))
        for name, path in zip(NAMES, DOCUMENTS, strict=True)
        for indent, found, body in FENCE.findall(path.read_text("utf-8"))
        if found == language
    ]


def longest(found: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Without the snippets that another one begins with or repeats in part."""
    lines = [set(text.splitlines()) for _, text in found]
    return [case for case, own in zip(found, lines, strict=True) if not any(own < other for other in lines)]


def commands() -> list[str]:
    """The names of the subcommands."""
    (sub,) = (action for action in cli.parser()._actions if isinstance(action.choices, dict))
    assert sub.choices is not None
    return list(sub.choices)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A reader's folder, with the files that snippets name: modules shown in a document, and measured delays."""
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
    """Or the test above could not fail."""
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


@pytest.mark.end_to_end
@pytest.mark.parametrize("text", [pytest.param(text, id=page) for page, text in longest(snippets("python"))])
@pytest.mark.slow
def test_a_python_snippet_runs(text: str, folder: Path) -> None:
    for shown, run in SMALLER.items():
        text = text.replace(shown, run)
    python("-W", "error", "-c", text, cwd=folder)


def test_a_ledger_can_be_read_as_shown(tmp_path: Path) -> None:
    page = (ROOT / "docs/privacy.md").read_text("utf-8")
    (statement,) = re.findall(r'sqlite3 [^"]*"(SELECT [^"]*)"', page)
    holder = {"client_id": "client-000", "data": "digits"}
    Ledger(tmp_path / "client-000.db", Budget(10.0, 0.04), unit="vector", **holder).close()
    with closing(sqlite3.connect(tmp_path / "client-000.db")) as database:
        assert database.execute(statement).fetchall() == []


def test_every_command_is_shown_in_use() -> None:
    used = " ".join(path.read_text("utf-8") for path in DOCUMENTS)
    assert [name for name in commands() if not re.search(rf"pausefl {name}\b", used)] == []


def test_every_page_is_reached_from_the_readme() -> None:
    reached, new = set[Path](), {ROOT / "README.md"}
    while new:
        reached |= new
        new = {
            to
            for path in new
            for target in links(path)
            if (to := (path.parent / target.partition("#")[0]).resolve()).suffix == ".md"
        } - reached
    assert [path.relative_to(ROOT).as_posix() for path in DOCUMENTS if path not in reached] == []
