"""What a run directory holds, and who is blamed, when the run in it ends with an error before its first round."""

import errno
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from pausefl.experiment.loading import parse_experiment
from pausefl.runtime.run_dir import CAMPAIGN_PLAN, made_run_dir, stored_experiment
from pausefl_proto.errors import ConfigError, PauseflError
from pausefl_server.records import LogEvent
from pausefl_server.storage.store import Store
from rigs.disks import full_disk
from rigs.refusals import refused

EXPERIMENT = parse_experiment('clients.count = 2\nselection.m = 2\nworkload.model = "synthetic"')


def test_a_run_that_fails_before_anybody_came_leaves_its_logs_alone(tmp_path: Path) -> None:
    """The same folder can be tried again once the cause is mended."""
    run_dir = tmp_path / "run"
    with pytest.raises(PauseflError, match="no loss"), made_run_dir(EXPERIMENT, run_dir):
        Store(run_dir / "run.db").close()
        for name in ("server.log", "step.json", "batched.json"):
            (run_dir / name).write_text("made by the run\n")
        (run_dir / "tensorboard").mkdir()
        raise PauseflError("no loss")
    assert [path.name for path in run_dir.iterdir()] == ["server.log"]
    with pytest.raises(PauseflError, match="nobody answered"), made_run_dir(EXPERIMENT, run_dir):
        with closing(Store(run_dir / "run.db")) as store:
            store.save_late_events(1, [LogEvent("joined", "client-000")])
        raise PauseflError("nobody answered")
    assert (run_dir / "run.db").exists(), "what client-000 may have spent is known"


def test_a_run_whose_log_was_taken_away_keeps_the_rest(tmp_path: Path) -> None:
    """Whether a round was played, nobody can tell."""
    run_dir = tmp_path / "run"
    with pytest.raises(PauseflError, match="moved"), made_run_dir(EXPERIMENT, run_dir):
        (run_dir / "checkpoints").mkdir()
        (run_dir / "run.db").rename(tmp_path / "elsewhere.db")
        raise PauseflError("moved")
    assert (run_dir / "checkpoints").exists()
    assert (run_dir / "config.toml").exists()


@pytest.mark.parametrize("what", ["is empty", "is missing"])
def test_a_run_that_has_lost_its_log_is_not_begun_anew(what: str, tmp_path: Path) -> None:
    """Its clients' ledgers hold what they spent, of which a log begun anew would know nothing."""
    run_dir = tmp_path / "run"
    with made_run_dir(EXPERIMENT, run_dir):
        (run_dir / "checkpoints").mkdir()  # as `Checkpoint` does, before the first job
    log = run_dir / "run.db"
    log.write_bytes(b"") if what == "is empty" else log.unlink()
    refused = pytest.raises(ConfigError, match=r"run\.db: is missing or empty, but a run began there; restore it")
    with refused, made_run_dir(EXPERIMENT, run_dir, resume=True):
        pass
    shutil.rmtree(run_dir / "checkpoints")
    with made_run_dir(EXPERIMENT, run_dir, resume=True):
        assert log.stat().st_size > 0


def test_a_whole_log_that_the_disk_does_not_take_is_to_be_restored_from_no_copy(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    Store(path).close()
    with closing(Store(path)) as store, full_disk():
        with pytest.raises(ConfigError, match=r"run\.db: cannot be written \(.*is the disk full\?\)$"):
            store.set_meta("colour", "red" * 100_000)
        assert store.meta("colour") is None
    with full_disk(), pytest.raises(ConfigError, match=r"run\.db: cannot be written \(.*is the disk full\?\)$"):
        Store(path)
    Store(path).close()


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError(),
        ConnectionRefusedError(errno.ECONNREFUSED, "refused"),
        OSError(errno.EMFILE, "too many"),
        FileExistsError(errno.EEXIST, "File exists", "/elsewhere/output"),
        PermissionError(errno.EACCES, "denied"),
    ],
)
def test_an_error_that_is_not_the_disks_is_not_laid_to_the_directory(error: OSError, tmp_path: Path) -> None:
    with pytest.raises(type(error)) as raised, made_run_dir(EXPERIMENT, tmp_path / "run"):
        raise error
    assert raised.value is error


@pytest.mark.parametrize(("number", "file"), [(errno.ENOSPC, None), (errno.EACCES, "run/run.db")])
def test_an_error_of_the_disk_is_laid_to_the_directory(number: int, file: str | None, tmp_path: Path) -> None:
    with refused("run: cannot be written (it failed"), made_run_dir(EXPERIMENT, tmp_path / "run"):
        raise OSError(number, "it failed", file and str(tmp_path / file))


def test_a_number_is_the_same_with_and_without_a_point(tmp_path: Path) -> None:
    """Tables of free keys keep numbers as they were typed."""
    for value, resume in ((1.0, False), (1, True)):
        with made_run_dir(EXPERIMENT.replace({"selection.pause.alpha": value}), tmp_path / "run", resume=resume):
            pass


def test_the_folder_of_a_comparison_is_told_from_a_run(tmp_path: Path) -> None:
    """`make demo` leaves one that is called after the demo, as a run would be."""
    (tmp_path / CAMPAIGN_PLAN).touch()
    with pytest.raises(ConfigError, match=r"holds a comparison, a sweep or a search; name one of the runs in it$"):
        stored_experiment(tmp_path)
