"""Rounds of two checkouts at once: one command, and what it says of ratios."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.duel import main, said_of
from rigs.places import ROOT


def test_the_mean_of_ratios_is_geometric_and_has_its_standard_error() -> None:
    assert said_of([0.5, 2.0]) == "1.000 ± 0.693 times as long after as before"
    assert said_of([0.9]) == "0.900 times as long after as before"


def test_a_folder_without_a_checkout_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([str(ROOT), str(tmp_path)])
    assert f"{tmp_path}: no checkout of pausefl" in capsys.readouterr().err


@pytest.mark.end_to_end
def test_two_checkouts_are_played_at_once() -> None:
    command = [sys.executable, "-m", "benchmarks.duel", str(ROOT), str(ROOT), "--rounds", "20", "--times", "2"]
    played = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    first, second, result = played.stdout.splitlines()
    assert all(line.count(" ms") == 2 for line in (first, second))
    assert result.endswith(" times as long after as before")


@pytest.mark.end_to_end
def test_both_fleets_end_where_one_fails(tmp_path: Path) -> None:
    (tmp_path / "emulator/pausefl").mkdir(parents=True)
    (tmp_path / "emulator/pausefl/__init__.py").write_text("raise SystemExit('broken')")
    command = [sys.executable, "-m", "benchmarks.duel", str(ROOT), str(tmp_path), "--rounds", "1000000"]
    played = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert played.returncode == 1
    assert "broken" in played.stderr
    assert played.stderr.endswith("a play failed, see above\n")
