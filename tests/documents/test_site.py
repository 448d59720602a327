"""The pages that `make docs` builds: links, anchors and docstrings hold, and every page is in the menu."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rigs.places import ROOT

pytest.importorskip("mkdocs")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A Python command, from the top of the repository."""
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False, env=environment
    )


@pytest.fixture
def staged(tmp_path: Path) -> Path:
    """A folder with the pages in docs-source, and mkdocs.yml, by which they are built into docs."""
    config = (ROOT / "mkdocs.yml").read_text("utf-8")
    for built in ("docs-source", "docs"):
        config = config.replace(f"_dir: build/{built}", f"_dir: {tmp_path / built}")
    for package in ("proto", "process", "server", "client", "emulator"):
        config = config.replace(f"{package},", f"{ROOT / package},").replace(f"{package}]", f"{ROOT / package}]")
    (tmp_path / "mkdocs.yml").write_text(config, "utf-8")
    done = run("docs/stage_site.py", str(tmp_path / "docs-source"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return tmp_path


def build(staged: Path) -> subprocess.CompletedProcess[str]:
    """What `make docs` does with the pages, with its own options."""
    (options,) = re.findall(r"mkdocs build(.*)", (ROOT / "Makefile").read_text("utf-8"))
    return run("-m", "mkdocs", "build", *options.split(), "--config-file", str(staged / "mkdocs.yml"))


def test_the_pages_build_without_a_warning(staged: Path) -> None:
    done = build(staged)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    assert "pausefl.Run" in (staged / "docs/docs/reference/api.html").read_text("utf-8")


@pytest.mark.parametrize("link", ["nowhere.md", "../README.md#nowhere"])
def test_a_broken_link_is_an_error(staged: Path, link: str) -> None:
    with (staged / "docs-source/docs/partitions.md").open("a", encoding="utf-8") as page:
        page.write(f"[somewhere]({link})\n")
    done = build(staged)
    assert done.returncode != 0
    assert "nowhere" in done.stderr
