"""A day of a standing fleet in a minute or two (`make test-fleet`): three runs with all kinds of faults; no ε is lost.

For root with `ip`, each client has a host of its own, a network namespace. For other users, clients are processes of
this machine.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pausefl.certificates import make_certificates
from pausefl_client.privacy.ledger import verified_spend
from pausefl_process.files import write_durably
from rigs.command import PAUSEFL, greatest_told, kill_group, query, rounds_in, summary_of, toml_of
from rigs.hosts import Hosts, hosts_of
from rigs.waiting import free_port, wait_for

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]

CLIENTS = int(os.environ.get("FLEET_CLIENTS", "10"))
ROUNDS = 24
LIFETIME = 100.0
PRIVACY = ["--set=privacy.epsilon_budget=20.0", "--set=privacy.eta=0.05"]
EXPERIMENT = {
    "experiment.rounds": ROUNDS,
    "clients": {"count": CLIENTS, "minimum": CLIENTS - 1, "connect_timeout_s": 240.0},
    "selection.m": 3,
    "latency.signal": "round_trip",
    "latency.delay": {"kind": "exponential", "mean_s": 0.3},
    "workload": {"dataset": "digits", "model": "mlp"},
    "evaluation.every": 2,
    "server": {"dead_after_s": 6.0, "round_timeout_s": 30.0},
    "privacy": {"epsilon_budget": 20.0, "eta": 0.05},
    "metrics.enabled": False,
}


class Day:
    """The fleet, its server and its evaluator, with their files and processes."""

    def __init__(self, folder: Path, hosts: Hosts) -> None:
        self.folder, self.hosts, self.port = folder, hosts, free_port()
        self.ids = [f"client-{number:03}" for number in range(CLIENTS)]
        self.config, self.admitted = folder / "day.toml", folder / "admitted.txt"
        self.config.write_text(toml_of(EXPERIMENT))
        self.admitted.write_text("client-*\n")
        make_certificates(folder / "certs", [hosts.server_name, "localhost"], self.ids)
        self.evaluator_port = free_port()
        self.clients: dict[str, subprocess.Popen[bytes]] = {}
        self.campaign: subprocess.Popen[bytes] | None = None
        self.evaluator: subprocess.Popen[bytes] | None = None
        self.began_s = time.monotonic()

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.began_s:6.1f} s  {text}", flush=True)

    def tls(self, name: str) -> list[str]:
        certs = self.folder / "certs"
        files = {"certificate": f"{name}.pem", "key": f"{name}.key", "ca": "ca.pem"}
        return [f"--set=tls.{key}={certs / path}" for key, path in files.items()]

    def start(self, log: str, command: list[str]) -> "subprocess.Popen[bytes]":
        with (self.folder / f"{log}.log").open("ab") as output:
            return subprocess.Popen(command, stdout=output, stderr=output, cwd=self.folder, start_new_session=True)

    def start_clients(self) -> None:
        for number, client_id in enumerate(self.ids):
            command = [*PAUSEFL, "client", "--server", f"{self.hosts.server_name}:{self.port}", "--stay"]
            command += ["--client-id", client_id, f"--epsilon-lifetime={LIFETIME}", "--ledger-dir=ledgers", *PRIVACY]
            command += ["--set=workload.device=cpu", "--set=server.dead_after_s=6.0", *self.tls(f"clients/{client_id}")]
            self.clients[client_id] = self.start(client_id, self.hosts.command(number, command))

    def start_evaluator(self) -> None:
        where = ["--set=evaluation.host=127.0.0.1", f"--set=evaluation.port={self.evaluator_port}"]
        self.evaluator = self.start("evaluator", [*PAUSEFL, "evaluator", str(self.config), *where, *self.tls("server")])

    def play(self, *arguments: str) -> None:
        """Begin or resume a campaign."""
        at = f"{self.hosts.server_address}:{self.port}"
        self.campaign = self.start("campaign", [*PAUSEFL, *arguments, "--fleet", at])

    def settings(self) -> list[str]:
        return [
            *self.tls("server"),
            "--set=admission.by_certificate=true",
            f"--set=admission.clients_file={self.admitted}",
            f"--set=evaluation.address=localhost:{self.evaluator_port}",
        ]

    def kill_campaign(self, run_dir: Path) -> list[tuple[object, ...]]:
        """Kill the server and its parent by SIGKILL; returns the rounds that were committed before."""
        assert self.campaign is not None
        committed = query(run_dir, "SELECT round, chosen, model_digest FROM rounds")
        kill_group(self.campaign)
        self.say(f"killed the server of {run_dir.name} after round {len(committed)}")
        return committed

    def wait_for_rounds(self, run_dir: Path, rounds: int) -> None:
        wait_for(lambda: (run_dir / "run.db").exists() and rounds_in(run_dir) >= rounds, f"round {rounds} of {run_dir}",
                 400.0, running=self.campaign)  # fmt: skip

    def log_of(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text("utf-8", "replace")

    def end(self) -> None:
        for process in (*self.clients.values(), self.campaign, self.evaluator):
            if process is not None and process.poll() is None:
                kill_group(process)


@contextmanager
def day_of(folder: Path) -> Iterator[Day]:
    with hosts_of(CLIENTS) as hosts:
        day = Day(folder, hosts)
        try:
            yield day
        finally:
            day.end()


def begun(folder: Path) -> list[Path]:
    """The run directories of a campaign, in order of their start."""
    found = sorted(folder.glob("*/config.toml"), key=lambda path: path.stat().st_mtime_ns)
    return [path.parent for path in found]


def test_a_day_of_a_fleet(tmp_path: Path) -> None:
    with day_of(tmp_path) as day:
        day.say(f"{CLIENTS} clients, {type(day.hosts).__name__}")
        day.start_clients()
        day.start_evaluator()
        comparison, sweep = tmp_path / "comparison", tmp_path / "sweep"
        policies = ["--policies", "pause,random", "--run-dir", str(comparison)]
        day.play("compare", str(day.config), *policies, *day.settings())
        wait_for(lambda: begun(comparison), "the first run", 400.0, running=day.campaign)
        first = begun(comparison)[0]
        day.wait_for_rounds(first, 4)
        kept = {first: day.kill_campaign(first)}
        day.play("compare", "--resume", str(comparison))
        day.wait_for_rounds(first, len(kept[first]) + 3)
        day.say(f"{first.name} goes on")

        if day.hosts.cut(2, is_cut=True):
            day.say("cut the link of client-002")
            wait_for(lambda: "no connection" in day.log_of("client-002").rsplit("connected", 1)[-1], "it to notice", 60)
            day.hosts.cut(2, is_cut=False)
            wait_for(lambda: day.log_of("client-002").rstrip().rsplit("no connection", 1)[-1].count(": connected"),
                     "client-002 to be back", 120)  # fmt: skip
            day.say("client-002 is back")

        assert day.evaluator is not None
        day.evaluator.kill()
        day.evaluator.wait()
        stopped_at = rounds_in(first)
        day.say(f"killed the evaluator at round {stopped_at}")
        day.wait_for_rounds(first, min(stopped_at + 3, ROUNDS))
        day.start_evaluator()

        wait_for(lambda: len(begun(comparison)) == 2, "the second run", 400.0, running=day.campaign)
        second = begun(comparison)[1]
        day.wait_for_rounds(second, 3)
        locked_out = day.ids[-1]
        write_durably(day.admitted, "".join(f"{client_id}\n" for client_id in day.ids[:-1]))
        wait_for(lambda: f"refuses {locked_out}" in day.log_of(locked_out), f"{locked_out} to be locked out", 120)
        day.say(f"locked {locked_out} out")
        day.wait_for_rounds(second, 8)
        kept[second] = day.kill_campaign(second)
        day.play("compare", "--resume", str(comparison))
        assert day.campaign is not None
        assert day.campaign.wait(600) == 0, day.log_of("campaign")[-2000:]
        day.say("the comparison is done")

        write_durably(day.admitted, "client-*\n")
        renewed = tmp_path / "certs/clients" / day.ids[0]
        for end in (".pem", ".key"):
            renewed.with_suffix(end).unlink()
        make_certificates(tmp_path / "certs", [day.hosts.server_name, "localhost"], day.ids)
        day.hosts.move_server()
        day.say(f"renewed a certificate, admitted {locked_out} again, the server is now at {day.hosts.server_address}")
        point = ["--set", "selection.pause.alpha=50", "--set", f"experiment.rounds={ROUNDS // 2}"]
        settings = [a for setting in day.settings() for a in ("--set", setting.removeprefix("--set="))]
        day.play("sweep", str(day.config), *point, *settings, "--run-dir", str(sweep))
        assert day.campaign.wait(600) == 0, day.log_of("campaign")[-2000:]
        (third,) = begun(sweep)
        day.say("the sweep is done")

        assert all(client.poll() is None for client in day.clients.values()), "every client has stayed"
        for client in day.clients.values():
            client.send_signal(signal.SIGTERM)
        assert {client.wait(60) for client in day.clients.values()} == {130}
        check_books(day, [first, second, third], kept)
        wall_clock_s = time.monotonic() - day.began_s
        day.say(f"nothing lost: {sum(map(rounds_in, (first, second, third)))} rounds in {wall_clock_s:.0f} s")


def check_books(day: Day, runs: list[Path], kept: dict[Path, list[tuple[object, ...]]]) -> None:
    for run_dir, committed in kept.items():
        now = query(run_dir, "SELECT round, chosen, model_digest FROM rounds")
        assert now[: len(committed)] == committed, "a committed round was lost"
    assert [rounds_in(run_dir) for run_dir in runs] == [ROUNDS, ROUNDS, ROUNDS // 2]
    summaries = [summary_of(run_dir) for run_dir in runs]
    assert [summary["outcome"] for summary in summaries] == ["completed"] * 3
    assert [summary["absent_clients"] for summary in summaries] == [[], [], []], "each took part in each run"
    assert all(summary["final_accuracy"] is not None for summary in summaries), "the evaluator came back"
    late = f"SELECT count(*) FROM events WHERE kind = 'joined' AND client_id = '{day.ids[-1]}'"
    assert query(runs[-1], late) != [(0,)], "who was locked out takes part again"
    for client_id in day.ids:
        released, epsilon = verified_spend(day.folder / "ledgers" / f"{client_id}.db")
        logged = [greatest_told(run_dir, client_id) for run_dir in runs]
        unheard = released - sum(count for count, _ in logged)
        assert unheard == 0 or (unheard == 1 and client_id == day.ids[-1]), f"{client_id}: {released}, logs: {logged}"
        if not unheard:  # a client that was locked out may have released once without reporting it
            assert epsilon == pytest.approx(sum(spent for _, spent in logged))
        assert epsilon <= LIFETIME
        told = [json.loads(line) for line in day.log_of(client_id).splitlines() if '"kind": "spent"' in line]
        assert told[-1]["epsilon"] == pytest.approx(epsilon)
