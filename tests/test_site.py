"""The pages that `make docs` builds: links, anchors and docstrings hold, and every page is in the menu."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

pytest.importorskip("mkdocs")


def test_the_pages_build_without_a_warning(tmp_path: Path) -> None:
    config = (ROOT / "mkdocs.yml").read_text("utf-8")
    for built in ("docs-source", "docs"):
        config = config.replace(f"_dir: build/{built}", f"_dir: {tmp_path / built}")
    for package in ("proto", "process", "server", "client", "emulator"):
        config = config.replace(f"{package},", f"{ROOT / package},").replace(f"{package}]", f"{ROOT / package}]")
    (tmp_path / "mkdocs.yml").write_text(config, "utf-8")
    build = ["-m", "mkdocs", "build", "--strict", "--quiet", "--config-file", str(tmp_path / "mkdocs.yml")]
    commands = (["docs/stage_site.py", str(tmp_path / "docs-source")], build)
    for arguments in commands:
        environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
        done = subprocess.run(
            [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False, env=environment
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert "pausefl.Run" in (tmp_path / "docs/docs/reference/api.html").read_text("utf-8")
