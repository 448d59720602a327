"""The short form of `make chaos`: whole runs under faults; and that the suite would see what it looks for."""

import asyncio
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from chaos.books import Violation, check_books, check_logs, check_nothing_lost, committed
from chaos.federation import Federation, Shape
from chaos.line import DAMAGES, HINDRANCES, Line
from chaos.own_machine import WallClock
from chaos.processes import Processes
from chaos.schedule import Choice, Fault, schedule

SHORT = Shape(
    rounds=50,
    faults=25,
    hosts=3,
    clients_each=2,
    m=4,
    pause_s=0.1,
    delay_s=0.15,
    peaceful_rounds=15,
    server_weight=1.0,
    clients_weight=1.0,
)
DATA = bytes(random.Random(1).randbytes(1000))


@pytest.mark.end_to_end
@pytest.mark.parametrize("mode", ["rounds", "asynchronous"])
async def test_a_run_under_faults_loses_nothing_and_its_books_agree(tmp_path: Path, mode: str) -> None:
    played = await Federation(49, replace(SHORT, mode=mode), tmp_path).play()
    assert played.rounds == SHORT.rounds
    assert sum(played.faults.values()) >= 6
    assert played.faults["kill server"] >= 1
    assert played.faults["kill clients"] >= 1
    assert played.checks["ledger = log = summary"] == 1
    run_dir = tmp_path / "run"

    before = committed(run_dir)
    check_nothing_lost(before, run_dir)
    with pytest.raises(Violation, match="committed rounds were lost or changed"):
        check_nothing_lost({**before, 1: "another"}, run_dir)
    with pytest.raises(Violation, match="committed rounds were lost or changed"):
        check_nothing_lost({**before, SHORT.rounds + 1: "gone"}, run_dir)

    (tmp_path / "server.err").write_text('Traceback (most recent call last):\n  File "grpc/grpc_string.pyx.pxi"\n')
    check_logs(tmp_path)
    (tmp_path / "server.err").write_text("Traceback (most recent call last):\n")
    with pytest.raises(Violation, match="Traceback"):
        check_logs(tmp_path)

    ledger = next((run_dir / "ledgers").glob("*.db"))
    shutil.copytree(run_dir, tmp_path / "short")
    with closing(sqlite3.connect(tmp_path / "short/ledgers" / ledger.name)) as database, database:
        database.execute("DELETE FROM releases WHERE participation = (SELECT max(participation) FROM releases)")
        (counted,) = database.execute("PRAGMA application_id").fetchone()
        database.execute(f"PRAGMA application_id = {counted - 1}")
    with pytest.raises(Violation, match="its ledger counts"):
        check_books(tmp_path / "short")


async def test_a_wait_for_a_process_can_be_given_up_and_begun_anew(tmp_path: Path) -> None:
    processes = Processes(tmp_path, {})
    child = await processes.start("idle", "client", tmp_path / "none.toml")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(child.ended(), 0.01)
    await processes.end_all()
    assert child.status is not None


def test_a_schedule_is_its_seed_s() -> None:
    menu = [Choice("kill", 1.0, ["a", "b"]), Choice("stop", 3.0, ["c"])]
    first, again, other = (list(islice(schedule(seed, menu, 0.5), 400)) for seed in (1, 1, 2))
    assert first == again != other
    assert Counter(fault.kind for fault in first)["stop"] == pytest.approx(300, abs=45)
    assert sum(fault.after_s for fault in first) == pytest.approx(200, rel=0.2)


@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize("size", [0.0, 0.5, 0.999])
def test_a_damage_is_what_its_name_says(kind: str, size: float) -> None:
    passed = b"".join(DAMAGES[kind](DATA, size))
    assert passed != DATA
    if kind == "drop bytes":
        assert len(passed) < len(DATA)
    elif kind == "duplicate bytes":
        assert len(passed) > len(DATA)
        assert passed.startswith(DATA)
    elif kind == "reorder bytes":
        assert sorted(passed) == sorted(DATA)
    else:
        assert sum((a ^ b).bit_count() for a, b in zip(passed, DATA, strict=True)) == 1


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionResetError):
        while data := await reader.read(1 << 16):
            writer.write(data)
    writer.close()


def fault(kind: str, size: float = 0.5) -> Fault:
    """One that may strike the first words of a connection, as every eighth may."""
    return Fault(8, 0.0, kind, "0", "down", size)


async def test_faults_on_a_line_strike_and_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in HINDRANCES:  # none is over before a slow machine has come to what it hinders
        monkeypatch.setitem(HINDRANCES, kind, 600.0)
    bit: Counter[str] = Counter()
    line, server = Line(bit), await asyncio.start_server(echo, "127.0.0.1", 0)
    await line.open()
    line.upstream = server.sockets[0].getsockname()[1]

    async def talk(struck: Fault | None, patience_s: float = 20.0) -> bytes:
        """What comes back of the second of two sentences, all of it or what comes before the end."""
        reader, writer = await asyncio.open_connection("127.0.0.1", line.port)
        try:
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
            if struck is not None:
                line.strike(struck)
            writer.write(DATA)
            async with asyncio.timeout(patience_s):
                return await reader.readexactly(len(DATA))
        except asyncio.IncompleteReadError as end:
            return end.partial
        finally:
            writer.close()

    async def held_back_s(kind: str) -> float:
        """How long the whole of a sentence takes under a fault that only slows it."""
        started_s = asyncio.get_running_loop().time()
        assert await talk(fault(kind, 1.0)) == DATA
        line.heal()
        return asyncio.get_running_loop().time() - started_s

    assert await talk(None) == DATA
    assert await talk(fault("flip a bit")) != DATA
    assert await talk(fault("close")) == DATA[:500]
    with pytest.raises(ConnectionResetError):
        await talk(fault("reset mid-frame"))
    with pytest.raises(TimeoutError):
        await talk(fault("half-open"), patience_s=0.2)  # for ever: no machine is so slow that this is too short
    assert await held_back_s("latency") > 0.9  # 0.5 s each way
    assert await held_back_s("1 kB/s") > 0.9
    line.strike(fault("refuse"))
    with pytest.raises(ConnectionResetError):
        await talk(None)
    line.heal()
    assert await talk(None) == DATA
    kinds = ("flip a bit", "reset mid-frame", "close", "half-open", "latency", "1 kB/s", "refuse")
    assert bit == dict.fromkeys(kinds, 1)
    await line.close()
    server.close()


def test_a_process_s_wall_clock_jumps_and_its_other_clock_does_not(tmp_path: Path) -> None:
    clock = WallClock(tmp_path)
    if clock.missing:
        pytest.skip(clock.missing)
    program = "import time; a, b = time.time(), time.monotonic(); print(flush=True); input();"
    program += " print(time.time() - a, time.monotonic() - b)"
    with subprocess.Popen(
        (sys.executable, "-c", program),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **clock.environment},
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        clock.jump(-86_400)
        process.stdin.write("\n")
        process.stdin.close()
        wall_s, steady_s = map(float, process.stdout.readline().split())
    assert wall_s == pytest.approx(-86_400, abs=60)
    assert 0 <= steady_s < 60
