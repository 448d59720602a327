"""Admission over real gRPC: accepted clients, the cost of unknown peers, and clients locked out of a run."""

import asyncio
import hashlib
import itertools
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from pausefl.certificates import make_certificates
from pausefl.experiment.experiment import parse_experiment
from pausefl.experiment.in_force import in_force
from pausefl.runtime.client.connecting import connect_over_grpc, fetch_experiment, token_for
from pausefl.runtime.client.plan import connection_plan
from pausefl.runtime.plan import plan_of
from pausefl.runtime.run_dir import made_run_dir
from pausefl_client.reconnection import Reconnection
from pausefl_client.transport import connect, fetch_offer
from pausefl_process.files import write_durably
from pausefl_process.tokens import read_token, read_token_digests
from pausefl_proto.endpoint import HELLOS_AT_ONCE
from pausefl_proto.errors import ConfigError, PauseflError, TryLaterError, WireError
from pausefl_proto.tls import Tls
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_server.connections.peer_limits import MAX_HELLO_BYTES, MOST_WAITING, HelloLimiter
from pausefl_server.rounds.admission import Admission, follow
from rigs.federation import answer_of, clients, federation, hello, raw_stream
from rigs.one_job import listening

PATIENT_S = 60.0


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that `pausefl certs` makes for two clients."""
    folder = tmp_path_factory.mktemp("certs")
    make_certificates(folder, ["127.0.0.1", "localhost"], ["a", "b"])
    make_certificates(folder, ["127.0.0.1"], ["group-*"])
    return folder


def by_token(files: Path) -> tuple[Admission, str]:
    """An admission of clients by token, and a's token."""
    return Admission(tokens=read_token_digests(str(files / "tokens.txt"))), read_token(str(files / "clients/a.token"))


def tls_of(files: Path, name: str) -> Tls:
    return Tls(str(files / f"{name}.pem"), str(files / f"{name}.key"), str(files / "ca.pem"))


async def answer_to(client_id: str, port: int, tls: Tls | None = None, token: str = "") -> str:
    """Send a hello; returns "welcome", or the reason of the refusal."""
    # The server may refuse the stream before the hello; gRPC may then break the stream before the goodbye is read.
    for _ in range(10):
        with suppress(OSError):
            async with connect(f"127.0.0.1:{port}", tls, token=token) as stream:
                with suppress(OSError):
                    await stream.write(hello(client_id))
                answer = pb.ServerMessage.FromString(await stream.read() or b"")
            return "welcome" if answer.HasField("welcome") else answer.goodbye.reason
    raise AssertionError("no answer could be read")


def test_an_id_is_a_clients_own_only_where_it_has_shown_that() -> None:
    by_token = Admission(tokens={"a": hashlib.sha256(b"secret").digest()})
    by_certificate = Admission(by_certificate=True)
    assert not Admission().check("a", ["a"], "secret"), "nothing was asked for"
    assert by_token.check("a", [], "secret")
    assert by_certificate.check("a", ["b", "a"], "")
    for admission in (by_token, by_certificate):
        with pytest.raises(WireError, match="neither certificate nor token shows that this client is one of the run's"):
            admission.check_known([], "a guess")
        with pytest.raises(WireError, match="neither certificate nor token shows that this client is 'a'"):
            admission.check("a", ["b"], "a guess")
    with pytest.raises(WireError, match="neither certificate nor token"):
        by_token.check("a", ["a"], "a guess")  # where certificates prove no ids
    with pytest.raises(WireError, match="neither certificate nor token"):
        by_token.check_known(["a"], "a guess")


def test_an_id_has_at_most_128_printable_characters() -> None:
    Admission().check("x" * 128, [], "")
    for wrong in ("", "x" * 129, "a\nb", "a\x1b[2J"):
        with pytest.raises(WireError, match="a client id has 1 to 128 printable characters"):
            Admission().check(wrong, [], "")


def test_a_listed_id_is_found_at_once_and_others_by_patterns(monkeypatch: pytest.MonkeyPatch) -> None:
    admission = Admission(listed=frozenset(("a", "[bc]")))
    assert [admission.check(client_id, [], "") for client_id in "abc"] == [False] * 3
    for wrong in ("d", "[bc]"):
        with pytest.raises(WireError, match="none of this run's"):
            admission.check(wrong, [], "")
    monkeypatch.setattr("pausefl_server.rounds.admission.fnmatchcase", None)  # no pattern is tried
    admission.check("a", [], "")


@pytest.mark.parametrize(("file", "own", "other"), [("clients/a", "a", "b"), ("clients/group-*", "group-007", "a")])
async def test_a_client_is_whom_its_certificate_names(files: Path, file: str, own: str, other: str) -> None:
    """A certificate may be a group's."""
    shown, why = tls_of(files, file), f"neither certificate nor token shows that this client is '{other}'"
    async with listening(tls_of(files, "server"), admission=Admission(by_certificate=True)) as port:
        assert await answer_to(own, port, shown) == "welcome"
        assert why in await answer_to(other, port, shown)


async def test_a_client_is_who_its_token_was_made_for_and_may_renew_it(files: Path, tmp_path: Path) -> None:
    admission, token = by_token(files)
    (file := tmp_path / "token").write_text("its last one")
    plan = connection_plan(parse_experiment(OPEN, {"admission.token": str(file)}))
    async with listening(admission=admission) as port:
        assert "neither" in await answer_to("b", port, token=token)
        for wrong in ("", token[:-1], "a"):
            assert "neither" in await answer_to("a", port, token=wrong)
        opened = connect_over_grpc(plan, f"127.0.0.1:{port}", "a")
        file.write_text(token)
        async with opened() as stream:
            await stream.write(hello("a"))
            assert pb.ServerMessage.FromString(await stream.read() or b"").HasField("welcome")


async def test_the_experiment_is_shown_to_those_who_may_say_hello(files: Path) -> None:
    admission, token = by_token(files)
    async with listening(admission=admission, offer=(offer := "{}".center(2 << 20))) as port:
        assert (await fetch_offer(f"127.0.0.1:{port}", None, token, Reconnection("a", 10.0))).experiment == offer
        with pytest.raises(ConfigError, match="neither certificate nor token shows"):
            await fetch_offer(f"127.0.0.1:{port}", None, "wrong", Reconnection("a", 10.0))


async def test_the_server_tells_why_it_refuses_clients_and_counts_them(files: Path, tmp_path: Path) -> None:
    """Once the server reported only that too few clients had come, and counted no rejections."""
    admission = Admission(frozenset("ab"), tokens=read_token_digests(str(files / "tokens.txt")))
    token = read_token(str(files / "clients/a.token"))
    async with federation(tmp_path, admission=admission, minimum_clients=1, rounds=1) as run, clients() as started:
        address = f"127.0.0.1:{await run.port}"
        for client_id, shown, why in [("a", "guess", "one of the run's"), ("b", token, "'b'"), ("c", token, "none of")]:
            await answer_to(client_id, await run.port, token=shown)
            message = (await run.event("notice", why))["message"]
            assert message.startswith("a client at ipv4:127.0.0.1:")
            assert shown not in message
        with pytest.raises(ConfigError):
            await fetch_offer(address, None, "guess", Reconnection("a", 10.0))
        await run.event("notice", "one of the run's")
        started.start("a", 0, connecting=partial(connect, address, token=token))
        await run.finished()
        assert run.rejected >= 4, "some may have come again for their answer"


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_request_for_the_experiment_that_does_not_come_holds_no_stream(files: Path, *, is_known: bool) -> None:
    admission, own = by_token(files)
    token = own if is_known else "a guess"
    within_s = 0.2 if is_known else 60.0  # for a stranger the server does not wait
    async with (
        listening(admission=admission, hello_timeout_s=within_s, offer="{}") as port,
        raw_stream(port, token, "Offer") as call,
        asyncio.timeout(20),
    ):
        assert await call.code() is (grpc.StatusCode.UNAVAILABLE if is_known else grpc.StatusCode.PERMISSION_DENIED)


@pytest.mark.parametrize(
    ("ids", "client_id", "reason"),
    [
        (frozenset("ab"), "c", "client id 'c' is none of this run's"),
        (frozenset("ab"), "a", "welcome"),
        ("client-*", "client-9", "welcome"),
        ("client-*", "stranger", "none of this run's"),
    ],
)
async def test_an_id_is_one_of_the_run(ids: frozenset[str] | str, client_id: str, reason: str) -> None:
    async with listening(admission=Admission(ids)) as port:
        assert reason in await answer_to(client_id, port)


# -- before the hello


async def test_a_stream_without_a_hello_is_closed_in_time() -> None:
    async with listening(hello_timeout_s=0.2) as port, raw_stream(port) as call:
        await call.wait_for_connection()
        goodbye = (await answer_of(call)).goodbye
        assert "said no hello within 0.2 s" in goodbye.reason
        assert not goodbye.final  # the hello may have been damaged on the way
        assert await call.read() is grpc.aio.EOF


async def test_a_hello_may_not_be_as_great_as_a_model() -> None:
    async with listening() as port, raw_stream(port) as call:
        greeting = pb.ClientMessage.FromString(hello("a"))
        greeting.hello.manifest.tensors[0].name = "x" * MAX_HELLO_BYTES
        await call.write(greeting.SerializeToString())
        goodbye = (await answer_of(call)).goodbye
        assert goodbye.final
        assert "bytes, at most" in goodbye.reason


async def test_an_owner_does_not_wait_behind_strangers(files: Path) -> None:
    admission, token = by_token(files)
    async with listening(admission=admission, hello_timeout_s=PATIENT_S) as port, AsyncExitStack() as closing:
        for _ in range(70):
            stranger = await closing.enter_async_context(raw_stream(port))
            await stranger.wait_for_connection()
        async with asyncio.timeout(20):
            assert await answer_to("a", port, token=token) == "welcome"


async def test_clients_beyond_those_that_may_wait_for_their_hello_are_told_to_come_back() -> None:
    async with listening(hello_timeout_s=60.0) as port, AsyncExitStack() as closing:
        calls = [await closing.enter_async_context(raw_stream(port)) for _ in range(MOST_WAITING + 3)]
        answers = [asyncio.ensure_future(answer_of(call)) for call in calls]
        refused = [await answer for answer in itertools.islice(asyncio.as_completed(answers), 3)]
        for answer in answers:
            answer.cancel()
        await asyncio.gather(*answers, return_exceptions=True)
    assert {(a.goodbye.final, a.goodbye.reason) for a in refused} == {(False, "too many clients say hello at once")}


async def test_the_silent_streams_of_one_connection_leave_room_for_others() -> None:
    limiter, waits = HelloLimiter(60.0), []

    async def wait(connection: str) -> None:
        async with limiter.slot(connection):
            await asyncio.Event().wait()

    async def is_let_in(connection: str) -> bool:
        waits.append(asyncio.create_task(wait(connection)))
        await asyncio.sleep(0)
        return not waits[-1].done()

    for silent in ("x", "y", "z"):
        while await is_let_in(silent):
            pass
    assert await is_let_in("an honest client's")
    refused = [wait for wait in waits if wait.done()]
    assert len(refused) == 3
    assert len(waits) - len(refused) < MOST_WAITING
    for task in waits:
        task.cancel()
    ends = await asyncio.gather(*waits, return_exceptions=True)
    assert sum(isinstance(end, TryLaterError) for end in ends) == 3


async def test_few_hellos_of_a_connection_are_read_at_once_and_none_holds_up_anothers() -> None:
    limiter, reading = HelloLimiter(60.0), Counter[str]()

    async def read(connection: str) -> None:
        async with limiter.slot(connection):
            reading[connection] += 1
            await asyncio.Event().wait()

    tasks = [asyncio.create_task(read(connection)) for connection in (*["x"] * 64, "y")]
    for _ in range(10):
        await asyncio.sleep(0)
    assert reading == {"x": HELLOS_AT_ONCE, "y": 1}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for _ in range(2 * MOST_WAITING):  # each reader has left its place
        async with limiter.slot("x"):
            pass


async def test_connections_beyond_the_limit_are_closed_at_once() -> None:
    allowed, opened = 2 * 4 + 64, 200
    async with listening(most_clients=4, hello_timeout_s=60.0) as port, silent_connections(port, opened) as ends:
        async with asyncio.timeout(30):
            for end in itertools.islice(asyncio.as_completed(ends), opened - allowed):
                await end


async def test_silent_connections_are_closed_in_time() -> None:
    async with listening(most_clients=4, hello_timeout_s=0.5) as port, silent_connections(port, 200) as ends:
        async with asyncio.timeout(30):
            await asyncio.gather(*ends)
        assert await answer_to("a", port) == "welcome"


@asynccontextmanager
async def silent_connections(port: int, count: int) -> AsyncIterator[list["asyncio.Task[None]"]]:
    """Open connections that send nothing; yields a task for each, which ends once the server has closed it."""
    with ExitStack() as closing:
        ends = []
        for _ in range(count):
            connection = closing.enter_context(socket.socket())
            connection.setblocking(False)
            await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
            ends.append(asyncio.create_task(end_of(connection)))
        try:
            yield ends
        finally:
            for end in ends:
                end.cancel()
            await asyncio.gather(*ends, return_exceptions=True)


async def end_of(connection: socket.socket) -> None:
    """Read and drop all data until the server closes the connection."""
    with suppress(OSError):
        while await asyncio.get_running_loop().sock_recv(connection, 1 << 16):
            pass


# -- listeners that other machines can reach

OPEN = """
[clients]
count = 2
[selection]
m = 1
[workload]
model = "synthetic"
[server]
host = "0.0.0.0"
"""


@pytest.mark.parametrize("more", ["", "[tls]\n{tls}", "[admission]\ntokens = '{files}/tokens.txt'"])
def test_a_server_that_others_can_reach_needs_tls_and_admission(files: Path, more: str) -> None:
    tls = f"certificate = '{files}/server.pem'\nkey = '{files}/server.key'\nca = '{files}/ca.pem'"
    experiment = parse_experiment(OPEN + more.format(files=files, tls=tls))
    with pytest.raises(ConfigError, match=r'server\.host = "0\.0\.0\.0": other machines can reach it'):
        plan_of(experiment, "run")


ELSEWHERE = "192.0.2.2:50051"  # a documentation address, which no machine has


def test_a_client_shows_its_token_to_other_machines_over_tls_alone(files: Path) -> None:
    token = {"admission.token": f"{files}/clients/{{client_id}}.token"}
    clear = connection_plan(parse_experiment(OPEN, token))
    with pytest.raises(ConfigError, match=rf"admission\.token = .* and {ELSEWHERE} could read it; set tls\.ca, or say"):
        token_for(clear, ELSEWHERE, "a")
    own = read_token(f"{files}/clients/a.token")
    assert {token_for(clear, f"{host}:1", "a") for host in ("127.0.0.1", "localhost", "[::1]")} == {own}
    for lifted in ({"server.insecure": True}, {"tls.ca": f"{files}/ca.pem"}):
        assert token_for(connection_plan(parse_experiment(OPEN, token | lifted)), ELSEWHERE, "a") == own


def test_a_client_asks_no_other_machine_for_the_experiment_by_a_token_in_the_clear(files: Path) -> None:
    own: dict[str, Any] = {"admission": {"token": f"{files}/clients/a.token"}, "clients": {"connect_timeout_s": 0.2}}
    with pytest.raises(ConfigError, match="could read it"):
        fetch_experiment(ELSEWHERE, "a", own)
    with pytest.raises(PauseflError, match="the server cannot be reached"):
        fetch_experiment("127.0.0.1:1", "a", own)


async def test_an_open_stream_of_a_client_that_is_admitted_no_longer_is_closed(tmp_path: Path) -> None:
    listed = tmp_path / "clients.txt"
    write_durably(listed, "a\nb\n")
    admission = Admission(clients_file=str(listed)).read()
    open_run: dict[str, Any] = {"minimum_clients": 2, "rounds": 10**6, "admission": admission}
    async with federation(tmp_path / "run", **open_run) as run:
        with pytest.raises(ExceptionGroup) as refused:
            async with clients() as started:
                started.start("a", await run.port)
                started.start("b", await run.port)
                await run.event("round")
                write_durably(listed, "b\n")
        (error,) = refused.value.exceptions
        assert str(error).startswith("the server refuses a: client id 'a' is none of this run's")
        assert not run.task.done()


async def test_a_list_that_is_still_being_written_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pausefl_server.rounds.admission._LOOKS_EVERY_S", 0.0)
    to_see, seen, used = [1, 1, 1, 2, 3, 3, 4, 3, 3], list[int](), list[Any]()

    def look() -> list[int]:
        seen.append(to_see.pop(0))
        return seen[-1:]

    admission: Any = SimpleNamespace(tokens_file="file", files_state=look, read=lambda: seen[-1])
    with pytest.raises(IndexError):  # there is nothing more to see
        await follow(admission, used.append, print)
    assert used == [1, 3]


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    for name, text in (("tokens", "a no-digest\n"), ("empty", " \n")):
        (tmp_path / name).write_text(text)
    unlisted = (Admission(clients_file=str(tmp_path / name)) for name in ("none", "empty"))
    for admission in (Admission(tokens_file=str(tmp_path / "tokens")), *unlisted):
        with pytest.raises(ConfigError, match=r"^admission\.(tokens|clients_file) = "):
            admission.read()


def test_who_may_join_is_of_the_place(tmp_path: Path) -> None:
    """Once a client could be locked out only by a new authority and new certificates for all other clients."""
    text = '[clients]\ncount = 3\n[selection]\nm = 2\n[workload]\nmodel = "synthetic"\n'
    with made_run_dir(in_force(parse_experiment(text)), tmp_path / "run"):
        pass
    without = ['admission.clients=["client-000","client-002"]', "clients.minimum=2", "server.dead_after_s=5.0"]
    shorter = parse_experiment(text, [*without, "admission.tokens=tokens.txt"])
    with made_run_dir(in_force(shorter), tmp_path / "run", resume=True):
        assert parse_experiment(text, without[:1]).minimum_clients == 2
