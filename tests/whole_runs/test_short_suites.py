"""`make chaos`, `make fuzz`, `make mutants` and the play of stops in short, and messages that once did harm."""

import asyncio
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
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
from fuzz.against_client import ClientFuzz
from fuzz.against_server import Plan, ServerFuzz
from fuzz.half_messages import HalfMessages
from fuzz.http2 import ATTACKS
from fuzz.malformed import WAYS, malformed
from fuzz.server_run import ServerRun
from fuzz.summary import MEMORY_TIMES_BASE, disk_bound_bytes, failures, memory_bound_bytes
from mutants.running import MISSED, MUTANTS, NOT_ASKED, ROOT, Mutant, mutated, try_mutant
from pausefl_proto.errors import DamageError
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_server.connections.peer_limits import MOST_WAITING
from rigs.client_actor import ClientActorRig
from rigs.command import PAUSEFL, query, rounds_in, sets
from rigs.places import TESTS
from rigs.session import welcomed
from rigs.waiting import wait_for
from stops.play import play, stops

MESSAGES = 1_500
EACH_MODE = pytest.mark.parametrize("mode", ["rounds", pytest.param("asynchronous", marks=pytest.mark.slow)])


def corpus(folder: str) -> pytest.MarkDecorator:
    """A parameter for each message in this folder of the corpus, named after its file."""
    files = sorted((TESTS / "fuzz/corpus" / folder).glob("*.bin"))
    assert files
    return pytest.mark.parametrize("data", [pytest.param(file.read_bytes(), id=file.stem) for file in files])


@corpus("to_server")
async def test_what_once_harmed_a_server_is_told_in_short(data: bytes) -> None:
    rig = ClientActorRig()
    running = [asyncio.ensure_future(actor.run()) for actor in (rig.coordinator, rig.actor)]
    await rig.dispatch()
    for message in (data, None):
        rig.stream.give(message)
    (ended,) = await asyncio.gather(rig.actor.listen(), return_exceptions=True)
    assert isinstance(ended, str | DamageError)
    for actor in (rig.actor, rig.coordinator):
        actor.stop()
    await asyncio.gather(*running)
    reasons = [rig.coordinator.told.get_nowait().reason for _ in range(rig.coordinator.told.qsize())]
    assert all(len(text) <= 200 and text.isprintable() for text in (str(ended), *reasons))


@corpus("to_client")
async def test_what_once_harmed_a_client_costs_it_its_stream_alone(data: bytes) -> None:
    async with welcomed() as (rig, stream):
        stream.give(data)
        assert (await (await rig.server.welcome()).ask(rig.model))[0].status == pb.STATUS_OK


def test_a_seed_decides_every_byte() -> None:
    def made(seed: int) -> list[object]:
        rng = random.Random(seed)
        result = pb.ClientMessage(result=pb.Result(round=1, update=pb.Vector(size_bytes=20)))
        return [[malformed(result, bytes(20), rng) for _ in range(500)], [ATTACKS[name](rng) for name in ATTACKS]]

    first = made(1)
    assert first == made(1) != made(2)
    assert {name for name, _ in first[0]} == set(WAYS)  # type: ignore[attr-defined]  # of this type here


@pytest.mark.end_to_end
@EACH_MODE
async def test_a_server_plays_on_under_malformed_messages(tmp_path: Path, mode: str) -> None:
    fuzz = ServerFuzz(Plan(MESSAGES, seed=2, insiders=40, mode=mode, warm_up_s=0.5, quiet_s=0.0, fuzz_s=20.0), print)
    await fuzz.run(tmp_path)
    found = fuzz.summary()
    assert found["messages"] >= MESSAGES
    assert (found["tracebacks"], found["exit_status"]) == (0, 130)
    assert set(found["sent"]) == {"HTTP/2 and below", "instead of a hello", "after the welcome"}
    assert found["peak_rss_bytes"] <= memory_bound_bytes(found)
    assert found["disk_bytes"] <= disk_bound_bytes(found)


@pytest.mark.end_to_end
async def test_clients_survive_malformed_messages_and_count_right(tmp_path: Path) -> None:
    fuzz = ClientFuzz(MESSAGES, 2, print)
    await fuzz.run(tmp_path)
    found = fuzz.summary()
    assert found["survives"]
    assert (found["tracebacks"], found["wrong_in_ledgers"]) == (0, 0)
    assert found["releases"] > 0
    assert found["peak_rss_bytes"] <= MEMORY_TIMES_BASE * found["base_rss_bytes"]


@pytest.mark.end_to_end
async def test_unfinished_hellos_of_strangers_take_bounded_memory(tmp_path: Path) -> None:
    """About 1.1 MB for each stream that may wait. gRPC holds two copies of it for a moment."""
    with ServerRun(tmp_path, hostile=500) as run:
        base_bytes = run.footprint().rss_bytes
        async with HalfMessages(run.port, connections=1, streams=400, message_bytes=1_100_000) as strangers:
            async with asyncio.timeout(120):
                while strangers.sent_bytes < 300e6:  # noqa: ASYNC110 - it has no event for that
                    await asyncio.sleep(0.1)
            peak_bytes = run.footprint().peak_rss_bytes
    assert peak_bytes - base_bytes < 1.5 * MOST_WAITING * 1_100_000 + 50e6


def test_a_summary_that_breaks_its_bounds_is_told() -> None:
    server = {"messages": 10, "pace": 0.7, "tracebacks": 1, "exit_status": 1, "base_rss_bytes": 1}
    client = {"wrong_in_ledgers": 1, "sound_jobs": 10, "sound_jobs_answered": 1, "base_rss_bytes": 1}
    told = failures(
        {"server": {**server, "disk_bytes": 10**9, "peak_rss_bytes": 1000}, "client": {**client, "peak_rss_bytes": 2}}
    )
    assert len(told) == 10


@pytest.mark.end_to_end
@pytest.mark.realtime
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler to make a machine seem to sleep")
async def test_what_a_stop_or_a_sleep_touched_is_marked_and_nothing_else(tmp_path: Path) -> None:
    """One stop of each kind, of the server, of a client and of both at once; `python tests/stops` plays a hundred."""
    planned = stops(6, seed=1, shortest_s=0.4, longest_s=1.0, longest_gap_s=1.0)
    *struck, total = await play(planned, 1, tmp_path, is_patient=True)
    assert sum(stop["touched"] for stop in struck) >= 3
    assert [stop for stop in struck if stop["missed"]] == []
    assert (total["wrongly marked"], total["rejected"]) == ([], 0)


@pytest.mark.end_to_end
def test_a_stop_leaves_no_mark_on_the_virtual_clock(tmp_path: Path) -> None:
    run_dir, keys = tmp_path / "run", ("workload.model=synthetic", "clients.count=4", "selection.m=2")
    command = [*PAUSEFL, "run", "demo", "--virtual", "--run-dir", str(run_dir), *sets(*keys, "experiment.rounds=250")]
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    for rounds in (0, 100):
        wait_for(lambda: rounds_in(run_dir) > rounds, "a round", running=run)  # noqa: B023 - called at once
        run.send_signal(signal.SIGSTOP)
        time.sleep(0.5)  # the length of the stop
        run.send_signal(signal.SIGCONT)
    _, errors = run.communicate(timeout=120)
    assert run.returncode == 0, errors
    assert rounds_in(run_dir) == 250
    for view in ("suspect_rounds", "suspect_observations"):
        assert query(run_dir, f"SELECT * FROM {view}") == []


# `make mutants` plays all of them.
SHORT = ("the schedule spends more than ε̄", "the bare update is sent", "an altered ledger is believed")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.why)
def test_a_mutant_still_fits_the_tree_and_compiles(mutant: Mutant) -> None:
    compile(mutated(mutant, (ROOT / mutant.file).read_text("utf-8")), mutant.file, "exec")


def test_the_table_is_of_these_mutants_and_none_goes_unnoticed() -> None:
    lines = (ROOT / "benchmarks/privacy-mutants.md").read_text("utf-8").splitlines()
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in lines if re.match(r"\| (?!breakage)", row)]
    assert [row[0] for row in rows] == [mutant.why for mutant in MUTANTS]
    assert len(rows) >= 25
    for _, _, *said in rows:
        assert not {*said} <= {MISSED, NOT_ASKED}


@pytest.mark.slow
@pytest.mark.parametrize("why", SHORT)
def test_a_mutant_is_caught(why: str) -> None:
    (mutant,) = (mutant for mutant in MUTANTS if mutant.why == why)
    assert try_mutant(mutant).tests.startswith(mutant.tests)


SHORT_CHAOS = Shape(
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
@EACH_MODE
async def test_a_run_under_faults_loses_nothing_and_its_books_agree(tmp_path: Path, mode: str) -> None:
    played = await Federation(49, replace(SHORT_CHAOS, mode=mode), tmp_path).play()
    assert (played.rounds, played.checks["ledger = log = summary"]) == (SHORT_CHAOS.rounds, 1)
    assert sum(played.faults.values()) >= 4  # fewer on a busy machine, which takes longer over each
    assert min(played.faults["kill server"], played.faults["kill clients"]) >= 1
    run_dir = tmp_path / "run"

    before = committed(run_dir)
    check_nothing_lost(before, run_dir)
    for other in ({1: "another"}, {SHORT_CHAOS.rounds + 1: "gone"}):
        with pytest.raises(Violation, match="committed rounds were lost or changed"):
            check_nothing_lost(before | other, run_dir)

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
    """A fault that may strike the first words of a connection, as one in eight may."""
    return Fault(8, 0.0, kind, "0", "down", size)


async def test_faults_on_a_line_strike_and_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in HINDRANCES:  # lasting long enough for a slow machine
        monkeypatch.setitem(HINDRANCES, kind, 600.0)
    bit: Counter[str] = Counter()
    line, server = Line(bit), await asyncio.start_server(echo, "127.0.0.1", 0)
    await line.open()
    line.upstream = server.sockets[0].getsockname()[1]

    async def talk(struck: Fault | None, patience_s: float = 20.0) -> bytes:
        """The echo of the second of two messages: all of it, or the part before the connection's end."""
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
        """The time until a whole message is back under a fault that only slows it down."""
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
        await talk(fault("half-open"), patience_s=0.2)  # never answered, so no machine is too slow for this
    assert await held_back_s("latency") > 0.9  # 0.5 s in each direction
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
