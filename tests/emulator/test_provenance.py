"""A run says where its numbers come from: each start, in log, summary and page."""

import json
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from pausefl.experiment.loading import load_experiment
from pausefl.runtime import provenance
from pausefl.runtime.run_dir import made_run_dir
from pausefl_server.storage.store import Store


def test_each_start_is_noted_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = load_experiment("demo")
    with made_run_dir(experiment, tmp_path / "run"):
        for arguments in (["/usr/bin/pausefl", "run", "demo"], ["src/pausefl/__main__.py", "run", "--resume", "a run"]):
            monkeypatch.setattr("sys.argv", arguments)
            provenance.note_start(tmp_path / "run")
    with closing(Store(tmp_path / "run" / "run.db")) as store:  # the log is whole
        starts = provenance.starts_of(store)
    assert [start["command"] for start in starts] == ["pausefl run demo", "pausefl run --resume 'a run'"]
    assert all(start["started"].endswith("+00:00") and start["host"] and start["version"] for start in starts)
    assert json.dumps(starts)


@pytest.mark.parametrize("text", [None, "no log"])
def test_a_run_that_failed_is_not_blamed_for_what_cannot_be_noted(tmp_path: Path, text: str | None) -> None:
    log = tmp_path / "run.db"
    if text is not None:
        log.write_text(text)
    provenance.note_unserved(tmp_path)
    assert (log.read_text() if log.exists() else None) == text


def test_an_installed_package_has_no_commit_of_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment often lies in a checkout, of another project; an image says what it was made of."""
    installed = tmp_path / ".venv/lib/site-packages/pausefl/runtime/provenance.py"
    installed.parent.mkdir(parents=True)
    git = ("git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b")
    for arguments in (("init", "--quiet"), ("commit", "--quiet", "--allow-empty", "--message", "theirs")):
        subprocess.run([*git, *arguments], check=True)
    monkeypatch.setattr(provenance, "__file__", str(installed))
    monkeypatch.delenv("PAUSEFL_COMMIT", raising=False)
    assert provenance.this_start().commit == ""
    monkeypatch.setenv("PAUSEFL_COMMIT", "abc123")
    assert provenance.this_start().commit == "abc123"
