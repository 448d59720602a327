"""`pausefl new`: what it writes runs as it is."""

import subprocess
import sys
from pathlib import Path

import pytest

import pausefl
from pausefl.cli import main


@pytest.mark.parametrize("fleet", [False, True])
def test_a_new_project_passes_its_own_test(fleet: bool, tmp_path: Path) -> None:
    (tmp_path / "fleet.csv").write_text("client,time,seconds\n" + "".join(f"phone-{k},1,0.{k}\n" for k in range(1, 5)))
    options = ["--fleet", str(tmp_path / "fleet.csv"), "--policy", "pause"] if fleet else []
    main(["new", str(tmp_path / "mine"), *options])
    test = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path / "mine")]
    done = subprocess.run(test, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    experiment = pausefl.load(tmp_path / "mine/experiment.toml")
    assert experiment.selection.policy == ("pause" if fleet else "own:Own")
    assert experiment.client_ids[0] == ("phone-1" if fleet else "client-000")
    with pytest.raises(SystemExit, match="2"):
        main(["new", str(tmp_path / "mine")])
