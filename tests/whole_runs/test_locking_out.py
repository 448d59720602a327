"""A client that is trusted no longer is locked out: while the run goes on, and of a run that is resumed."""

import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pausefl.certificates import make_certificates
from pausefl.experiment.loading import parse_experiment
from pausefl.runtime.run_dir import made_run_dir
from pausefl_process.files import write_durably
from pausefl_proto.errors import ConfigError
from pausefl_server.connections.admission_files import AdmissionFiles
from pausefl_server.rounds.admission import Admission
from rigs.command import PAUSEFL, query, rounds_in, synthetic
from rigs.federation import clients, federation
from rigs.ports import free_port
from rigs.waiting import wait_for


async def test_an_open_stream_of_a_client_that_is_admitted_no_longer_is_closed(tmp_path: Path) -> None:
    listed = tmp_path / "clients.txt"
    write_durably(listed, "a\nb\n")
    files = AdmissionFiles(clients=str(listed))
    admission = files.read(Admission())
    open_run: dict[str, Any] = {"minimum_clients": 2, "rounds": 10**6, "admission": admission, "admission_files": files}
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


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokens.txt").write_text("a no-digest\n")
    for files in (AdmissionFiles(tokens=str(tmp_path / "tokens.txt")), AdmissionFiles(clients=str(tmp_path / "none"))):
        with pytest.raises(ConfigError, match=r"^admission\.(tokens|clients_file) = "):
            files.read(Admission())


def test_who_may_join_is_of_the_place(tmp_path: Path) -> None:
    """With certificates, a client could be locked out by a new authority and new certificates for all others only."""
    text = '[clients]\ncount = 3\n[selection]\nm = 2\n[workload]\nmodel = "synthetic"\n'
    with made_run_dir(parse_experiment(text), tmp_path / "run"):
        pass
    without = ['admission.clients=["client-000","client-002"]', "clients.minimum=2", "server.dead_after_s=5.0"]
    shorter = parse_experiment(text, [*without, "admission.tokens=tokens.txt"])
    with made_run_dir(shorter, tmp_path / "run", resume=True):
        assert parse_experiment(text, without[:1]).minimum_clients == 2


@pytest.mark.slow
def test_the_recipe_locks_a_client_out_of_a_run(tmp_path: Path) -> None:
    """As docs/machines.md has it, with real processes, certificates, and a resume."""
    make_certificates(tmp_path / "certs", ["localhost"], [f"client-00{i}" for i in range(3)])
    config, run_dir, port = synthetic(tmp_path, rounds=10**6, clients=3, m=2), tmp_path / "run", free_port()
    admitted = tmp_path / "admitted.txt"
    admitted.write_text("client-*\n")

    def files(name: str) -> list[str]:
        paths = {"certificate": f"{name}.pem", "key": f"{name}.key", "ca": "ca.pem"}
        return [f"--set=tls.{key}={tmp_path}/certs/{path}" for key, path in paths.items()]

    serve = [*PAUSEFL, "server", str(config), "--run-dir", str(run_dir), *files("server"), f"--set=server.port={port}"]
    serve += ["--set=admission.by_certificate=true", f"--set=admission.clients_file={admitted}", "--quiet"]
    join = [*PAUSEFL, "client", str(config), "--server", f"localhost:{port}", "--ledger-dir", str(tmp_path), "--quiet"]

    def come(client_id: str) -> "subprocess.Popen[str]":
        own = ["--client-id", client_id, *files(f"clients/{client_id}")]
        return subprocess.Popen([*join, *own], stderr=subprocess.PIPE, text=True)

    server = subprocess.Popen(serve)
    peers = [come(f"client-00{i}") for i in range(3)]
    try:
        wait_for(lambda: rounds_in(run_dir) >= 5, "some rounds", running=server)
        write_durably(admitted, "client-000\nclient-002\n")
        _, complaint = peers[1].communicate(timeout=30)
        assert "client id 'client-001' is none of this run's" in complaint
        played = rounds_in(run_dir)
        wait_for(lambda: rounds_in(run_dir) > played + 5, "further rounds", running=server)
        ((chosen,),) = query(run_dir, "SELECT chosen FROM rounds ORDER BY round DESC LIMIT 1")
        assert "client-001" not in chosen
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 130
        played = rounds_in(run_dir)
        server = subprocess.Popen([*serve, "--resume", "--set=clients.minimum=2"])
        peers += [come("client-000"), come("client-002")]
        wait_for(lambda: rounds_in(run_dir) > played, "the resumed run", running=server)
    finally:
        for peer in peers:
            peer.kill()
            peer.communicate()
        server.kill()
        server.wait()
