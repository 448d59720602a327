"""What a run directory holds, and who is blamed, when the run in it ends with an error before its first round."""

import errno
from contextlib import closing
from pathlib import Path

import pytest

from pausefl.config.loading import parse_experiment
from pausefl.runtime.run_dir import made_run_dir
from pausefl_proto.errors import ConfigError, PauseflError
from pausefl_server.records import LogEvent
from pausefl_server.storage.store import Store

SYNTHETIC = """
[clients]
count = 2
[selection]
m = 2
[workload]
model = "synthetic"
"""


def test_a_run_that_fails_before_anybody_came_leaves_its_logs_alone(tmp_path: Path) -> None:
    """The same folder can be tried again once the cause is mended."""
    run_dir, experiment = tmp_path / "run", parse_experiment(SYNTHETIC)
    with pytest.raises(PauseflError, match="no loss"), made_run_dir(experiment, run_dir):
        Store(run_dir / "run.db").close()
        for name in ("server.log", "step.json"):
            (run_dir / name).write_text("made by the run\n")
        raise PauseflError("no loss")
    assert [path.name for path in run_dir.iterdir()] == ["server.log"]
    with pytest.raises(PauseflError, match="nobody answered"), made_run_dir(experiment, run_dir):
        with closing(Store(run_dir / "run.db")) as store:
            store.save_late_events(1, [LogEvent("joined", "client-000")])
        raise PauseflError("nobody answered")
    assert (run_dir / "run.db").exists(), "what client-000 may have spent is known"


@pytest.mark.parametrize(
    "error", [TimeoutError(), ConnectionRefusedError(errno.ECONNREFUSED, "refused"), OSError(errno.EMFILE, "too many")]
)
def test_an_error_that_is_not_the_disks_is_not_laid_to_the_directory(error: OSError, tmp_path: Path) -> None:
    experiment = parse_experiment(SYNTHETIC)
    with pytest.raises(type(error)) as raised, made_run_dir(experiment, tmp_path / "run"):
        raise error
    assert raised.value is error
    full = OSError(errno.ENOSPC, "No space left on device")
    said = pytest.raises(ConfigError, match=r"run: cannot be written \(No space left")
    with said, made_run_dir(experiment, tmp_path / "other run"):
        raise full
