"""The clients of one process: what ends one of them ends no other, and what ends all of them ends their work."""

import asyncio
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pausefl.experiment.loading import parse_experiment
from pausefl.runtime.client.plan import client_plan
from pausefl.runtime.client.process import run_clients_over_grpc
from pausefl_proto.errors import PauseflError
from rigs.clock import Clock
from rigs.federation import SIZE, federation, hello, log_of, raw_stream
from rigs.session import SCHEDULE, SessionRig, private

TWO = f"""
clients = {{ count = 2, connect_timeout_s = 0.2 }}
selection.m = 1
privacy.enabled = false
latency.delay.kind = "none"
[workload]
model = "synthetic"
model_bytes = {4 * SIZE}
"""


async def test_a_refused_client_is_told_at_the_end_and_the_others_go_on(tmp_path: Path) -> None:
    async with federation(tmp_path, rounds=10, round_timeout_s=0.2, rejoin_timeout_s=0.0) as run:
        async with raw_stream(port := await run.port) as call:
            await call.write(hello("client-000"))
            await call.read()  # now its id is taken
            both = ["client-000", "client-001"]
            with pytest.raises(PauseflError, match="client id 'client-000' is connected already"):
                async with asyncio.timeout(30):
                    await run_clients_over_grpc(
                        client_plan(parse_experiment(TWO)), both, f"127.0.0.1:{port}", tmp_path / "ledgers"
                    )
        assert (await run.finished()).state.round == 10
    assert "client-001" in {o.client_id for record in log_of(tmp_path) for o in record.observations}


TRAINS_NICELY = f"""
import os, threading
from pausefl.experiment.loading import parse_experiment
from pausefl.runtime.client.plan import client_plan
from pausefl.runtime.client.process import trainer_pool

plan = client_plan(parse_experiment('''{TWO}train_s = 0.1'''))
niceness = os.nice(15)
if os.getuid() == 0:
    os.setuid(65534)  # root may lower a niceness
with trainer_pool(plan) as pool:
    print(pool.submit(lambda: os.getpriority(os.PRIO_PROCESS, threading.get_native_id())).result() == niceness)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="threads have a niceness of their own on Linux alone")
def test_clients_that_are_nicer_than_training_is_can_train() -> None:
    played = subprocess.run([sys.executable, "-c", TRAINS_NICELY], capture_output=True, text=True, check=False)
    assert played.stdout == "True\n", played.stderr


class CountingExecutor(ThreadPoolExecutor):
    """One thread; a permit for each work it is given."""

    def __init__(self) -> None:
        super().__init__(1)
        self.submitted = asyncio.Semaphore(0)

    def submit(self, *args: Any, **kwargs: Any) -> "Future[Any]":
        self.submitted.release()
        return super().submit(*args, **kwargs)


async def test_clients_that_are_ended_neither_train_nor_pay_for_what_nobody_waits_for(tmp_path: Path) -> None:
    clock, executor = Clock(), CountingExecutor()
    privacies = [private(tmp_path / name, clock) for name in ("trains", "waits")]
    trains, waits = (SessionRig(privacy=p, executor=executor, clock=clock) for p in privacies)
    trains.trainer.gate.clear()
    async with trains.running(), waits.running():
        for rig in (trains, waits):
            (await rig.server.welcome()).give_job(rig.model, 1, SCHEDULE)
            await executor.submitted.acquire()
            await asyncio.to_thread(trains.trainer.begun.wait, 20)
    trains.trainer.gate.set()
    executor.shutdown()
    assert (trains.trainer.rounds, waits.trainer.rounds) == ([1], [])
    assert [p.ledger.released for p in privacies] == [0, 0]
