"""Why a job failed: in a private run the server is told the kind of error, and the client's own log its text."""

from pathlib import Path

import pytest

from pausefl_proto.errors import ConfigError, PauseflError
from pausefl_proto.v1 import federation_pb2 as pb
from rigs.session import SCHEDULE, SessionRig


@pytest.mark.parametrize("error", [IndexError, PauseflError, ConfigError])
async def test_in_a_private_run_an_error_of_the_trainers_is_not_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: type[Exception]
) -> None:
    """It may quote the data: "Target 12 is out of bounds" is a label."""
    rig = SessionRig(ledger_in=tmp_path)
    rig.trainer.fails_in = {1: error("Target 12 is out of bounds")}
    async with rig.welcomed() as stream:
        refusal = await stream.refusal(rig.model, 1, SCHEDULE)
    assert (refusal.status, refusal.reason) == (pb.STATUS_FAILED, "it failed at the job; its own log says why")
    assert "Target 12 is out of bounds" in caplog.text


async def test_what_stops_a_ledger_is_told_without_its_path(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rig = SessionRig(ledger_in=tmp_path)
    async with rig.welcomed() as stream:
        rig.ledger.close()
        refusal = await stream.refusal(rig.model, 1, SCHEDULE)
    assert refusal.status == pb.STATUS_FAILED
    assert refusal.reason == "its ledger takes no release; its own log says why"
    assert str(tmp_path) in caplog.text
