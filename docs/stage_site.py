"""Copies every page, and the files that pages link to, to a folder for mkdocs: `python docs/stage_site.py FOLDER`.

The folder has the repository's structure, so that links between pages work there too. One page is only for the site:
it lists the modules that extensions use, and mkdocstrings fills it from their docstrings.
"""

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ("*.md", "docs/**/*.md", "deploy/*.md", "examples/*.md", "benchmarks/*.md")
ASSETS = ("docs/site.css", "docs/iframe-worker.js")
MODULES = (
    "pausefl",
    "pausefl.experiment.delay_laws.base",
    "pausefl_server.selection",
    "pausefl_server.clients",
    "pausefl_client.data.datasets",
    "pausefl_client.training.trainer",
    "pausefl_process.events",
    "pausefl_proto.budget",
)

_HEAD = """# Modules

What policies, delay laws, data sets and trainers of your own build on, from the docstrings. Names that
[the Python API](api.md) does not list may change in any version.
"""


def stage(folder: Path) -> None:
    """Copy pages and linked files to a folder. The folder is emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    pages = [page for pattern in PAGES for page in ROOT.glob(pattern)]
    for file in {*pages, *(ROOT / name for name in ASSETS), *(file for page in pages for file in linked(page))}:
        copy = folder / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
    modules = "".join(
        f"\n## `{name}`\n\n::: {name}\n    options:\n      show_root_heading: false\n" for name in MODULES
    )
    (folder / "docs" / "reference" / "modules.md").write_text(_HEAD + modules, "utf-8")


def linked(page: Path) -> Iterator[Path]:
    """Yields the files of the repository to which a page links or that it shows."""
    for target in re.findall(r"\]\(([^()\s#]+)", page.read_text("utf-8")):
        file = (page.parent / target).resolve()
        if file.is_file() and file.is_relative_to(ROOT):
            yield file


if __name__ == "__main__":
    stage(Path(sys.argv[1]))
