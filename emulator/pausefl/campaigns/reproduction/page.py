"""Keeps summaries of reproductions in a checkout of the repository, and writes docs/results.md from them."""

import json
import shutil
from pathlib import Path
from typing import Any

from pausefl.campaigns.reproduction.document import results_page
from pausefl.campaigns.reproduction.figure import draw_reproduction
from pausefl.campaigns.reproduction.summary import SUMMARY
from pausefl.published import reproductions
from pausefl.report.style import save_png
from pausefl_process.files import write_durably
from pausefl_proto.errors import ConfigError

_KEPT = Path("results") / "reproduce"


def keep(folder: Path, docs: Path) -> None:
    """Copy a finished reproduction's summary among the documents."""
    check_docs(docs)
    (docs / _KEPT).mkdir(exist_ok=True)
    name = json.loads((folder / SUMMARY).read_text("utf-8"))["name"]
    shutil.copyfile(folder / SUMMARY, docs / _KEPT / f"{name}.json")


def write_page(docs: Path) -> Path:
    """Write docs/results.md and its pictures from what is kept there; ConfigError unless `docs` is the repository's."""
    check_docs(docs)
    page, summaries = docs / "results.md", kept_summaries(docs)
    for summary in summaries:
        save_png(draw_reproduction(summary), docs / _KEPT / f"{summary['name']}.png")
    write_durably(page, results_page(summaries))
    return page


def kept_summaries(docs: Path) -> list[dict[str, Any]]:
    """The summaries kept among the documents, in the papers' order."""
    files = (docs / _KEPT / f"{each.name}.json" for each in reproductions())
    return [json.loads(file.read_text("utf-8")) for file in files if file.exists()]


def check_docs(docs: Path) -> None:
    """Raise ConfigError where `docs` is not the repository's."""
    if not (docs / "results").is_dir():
        raise ConfigError("--write-docs: goes in a checkout of the repository, where docs/results lies")
