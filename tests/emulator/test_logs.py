"""What a run reports while it plays: logs for people or machines, each start's command, and addresses to scrape."""

import json
import logging
import os
import pty
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pausefl.cli import main
from pausefl.experiment.experiment import load_experiment, parse_experiment
from pausefl.experiment.in_force import in_force
from pausefl.runtime import fleet, provenance
from pausefl.runtime.client.failures import telling_failures
from pausefl.runtime.client.plan import client_plan
from pausefl.runtime.fleet import Fleet
from pausefl.runtime.plan import plan_of
from pausefl.runtime.processes.log_file import how_it_ended
from pausefl.runtime.processes.logs import VARIABLE, add_warning, ask_for, set_up_log
from pausefl.runtime.run_dir import made_run_dir
from pausefl.runtime.scrape_targets import Targets
from pausefl_client.session import FAILED_JOB
from pausefl_process.events import RUN, MetricsServed, Notice, ProgressEvent, RoundCommitted
from pausefl_proto.errors import ConfigError
from pausefl_server.storage.store import Store
from rigs.command import PAUSEFL, played, summary_of, synthetic


@pytest.fixture
def root_logger(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restores the root logger after the test. A run that an earlier test played in this process is not named."""
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.delenv(RUN, raising=False)
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    root.handlers[:] = before
    root.setLevel(level)


def logged(capsys: pytest.CaptureFixture[str]) -> str:
    """The log lines of a client's round and of a traceback."""
    set_up_log()
    log = logging.getLogger("pausefl.test")
    log.info("joined", extra={"round": 3, "client_id": "client-007"})
    try:
        raise LookupError("no weights")
    except LookupError:
        log.exception("failed")
    return capsys.readouterr().err


@pytest.mark.usefixtures("root_logger")
def test_a_stream_that_was_gone_before_its_end_is_no_error_of_the_server(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_log()
    for name in ("ExecuteBatchError", "KeyError"):
        logging.getLogger("grpc._cython.cygrpc").error("%s raised in core by servicer method [/Join]", name)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("ERROR KeyError raised in core by servicer method [/Join]")


@pytest.mark.usefixtures("root_logger")
def test_a_line_is_for_people_with_its_time_or_json_with_round_and_client(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert logged(capsys).splitlines()[0].endswith(" INFO joined")
    monkeypatch.setenv("PAUSEFL_LOG", "verbose,json")  # as a user does in containers
    joined, failed = map(json.loads, logged(capsys).splitlines())
    assert joined.pop("time").endswith("+00:00")
    wanted = {"level": "info", "kind": "log", "logger": "pausefl.test", "message": "joined", "round": 3}
    assert joined == wanted | {"client": "client-007"}
    assert failed["exception"].splitlines()[-1] == "LookupError: no weights"
    ask_for(quiet=True)
    assert "joined" not in logged(capsys)


def json_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.end_to_end
def test_every_line_of_a_run_s_logs_is_json_if_asked_for(tmp_path: Path) -> None:
    played("run", synthetic(tmp_path), "--run-dir", tmp_path / "run", "--log-json", "--verbose")
    lines = json_lines(tmp_path / "run/server.log")
    of_rounds = [line for line in lines if line["kind"] == "round"]
    assert of_rounds
    first, enough = (line["event"] for line in lines if line["kind"] == "waiting")  # not each client of four
    assert (first["connected"], enough["connected"]) == (0, enough["minimum"])
    assert all(line["round"] == line["event"]["round"] for line in of_rounds)
    exchanges = [line for line in json_lines(tmp_path / "run/clients.log") if "round" in line]
    assert all(line["run"] == "run" for line in [*of_rounds, *exchanges])
    assert len(exchanges) == 20  # two clients in each of ten rounds
    assert all(line["message"].startswith(f"{line['client']}: round {line['round']}: ok") for line in exchanges)


@pytest.mark.end_to_end
@pytest.mark.usefixtures("quickly_written")
@pytest.mark.parametrize("wish", [(), ("--verbose",)])
def test_on_the_virtual_clock_exchanges_are_logged_if_asked_for(tmp_path: Path, wish: tuple[str, ...]) -> None:
    """One process plays all clients: lines of exchanges would fill most of its log."""
    main(["run", str(synthetic(tmp_path)), "--virtual", "--run-dir", str(tmp_path / "run"), *wish])
    exchanges = [line for line in (tmp_path / "run/server.log").read_text().splitlines() if ": ok after" in line]
    assert len(exchanges) == (20 if wish else 0)  # two clients in each of ten rounds


@pytest.mark.end_to_end
@pytest.mark.usefixtures("quickly_written")
@pytest.mark.parametrize("clock", ["real", "virtual"])
@pytest.mark.parametrize("is_private", [True, False])
def test_each_reason_why_clients_failed_is_shown_once(clock: str, is_private: bool, tmp_path: Path) -> None:
    """In a private run the server is not told the reason: the process that began the clients hears it from them."""
    changes = {"experiment.clock": clock, "metrics.client_port": -1, "privacy.enabled": is_private}
    changes |= {"clients.groups": {"client": {"count": 4, "behaviours": [{"kind": "dropout", "probability": 0.6}]}}}
    shown = list[ProgressEvent]()
    Fleet(plan_of(parse_experiment(CONFIG, changes), "run"), tmp_path).run(shown.append)
    said = [event.message for event in shown if isinstance(event, Notice) and "dropped out" in event.message]
    how = "failed at" if is_private else "gave no update in"
    assert re.fullmatch(rf"client client-00\d {how} round \d+: dropped out", "\n".join(said))


def test_a_process_tells_ten_reasons_of_failures() -> None:
    shown = list[ProgressEvent]()
    with telling_failures(client_plan(load_experiment("demo")), shown.append):
        for number in range(30):
            logging.getLogger("pausefl.client").warning(FAILED_JOB, "a", number, f"reason {number // 2}: x")
    assert [event.message for event in shown if isinstance(event, Notice)] == [
        f"client a failed at round {2 * number}: reason {number}: x" for number in range(10)
    ]


@pytest.mark.end_to_end
@pytest.mark.parametrize("as_json", [False, True])
def test_a_server_on_a_terminal_speaks_to_people_unless_asked_for_json(tmp_path: Path, as_json: bool) -> None:
    settings = ("--set", "metrics.enabled=false", "--set", "clients.connect_timeout_s=0.5")
    command = [*PAUSEFL, "server", str(synthetic(tmp_path)), "--run-dir", str(tmp_path / "run"), *settings]
    ours, theirs = pty.openpty()
    with subprocess.Popen([*command, *(["--log-json"] if as_json else [])], stdout=theirs) as server:
        server.wait(60)
        said = os.read(ours, 1 << 16).decode()
    for end in (ours, theirs):
        os.close(end)
    first = said.splitlines()[0]
    assert (json.loads(first)["kind"] == "ready") if as_json else ("listening at port" in said and "{" not in said)


def test_each_start_is_noted_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = load_experiment("demo")
    with made_run_dir(in_force(experiment), tmp_path / "run"):
        for arguments in (["/usr/bin/pausefl", "run", "demo"], ["src/pausefl/__main__.py", "run", "--resume", "a run"]):
            monkeypatch.setattr("sys.argv", arguments)
            provenance.note_start(tmp_path / "run")
    with closing(Store(tmp_path / "run" / "run.db")) as store:  # the log is complete
        starts = provenance.starts_of(store)
    assert [start["command"] for start in starts] == ["pausefl run demo", "pausefl run --resume 'a run'"]
    assert all(start["started"].endswith("+00:00") and start["host"] and start["version"] for start in starts)
    assert json.dumps(starts)


@pytest.mark.parametrize("text", [None, "no log"])
def test_a_run_that_failed_is_not_blamed_for_what_cannot_be_noted(tmp_path: Path, text: str | None) -> None:
    log = tmp_path / "run.db"
    if text is not None:
        log.write_text(text)
    provenance.note_unserved(tmp_path)
    assert (log.read_text() if log.exists() else None) == text


def test_an_installed_package_has_no_commit_of_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment often lies in the checkout of another project. An image states its commit by PAUSEFL_COMMIT."""
    installed = tmp_path / ".venv/lib/site-packages/pausefl/runtime/provenance.py"
    installed.parent.mkdir(parents=True)
    git = ("git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b")
    for arguments in (("init", "--quiet"), ("commit", "--quiet", "--allow-empty", "--message", "theirs")):
        subprocess.run([*git, *arguments], check=True)
    monkeypatch.setattr(provenance, "__file__", str(installed))
    monkeypatch.delenv("PAUSEFL_COMMIT", raising=False)
    assert provenance.this_start()["commit"] == ""
    monkeypatch.setenv("PAUSEFL_COMMIT", "abc123")
    assert provenance.this_start()["commit"] == "abc123"


CONFIG = """
experiment.rounds = 100
clients = { count = 4, per_process = 2 }
selection = { policy = "all", m = 4 }
latency.delay.kind = "none"
workload.model = "synthetic"
metrics.client_port = 0
"""


class Scraper:
    """Reads targets.json after each round and keeps the last content; scrapes all targets once there are three."""

    def __init__(self, run_dir: Path) -> None:
        self._file = run_dir / "targets.json"
        self.groups: dict[str, Any] = {}
        self.pages: dict[str, list[str]] = {}

    def show(self, event: ProgressEvent) -> None:
        if isinstance(event, RoundCommitted):
            self.groups = {group["labels"]["job"]: group for group in json.loads(self._file.read_text())}
            if not self.pages and sum(len(group["targets"]) for group in self.groups.values()) == 3:
                for job, group in self.groups.items():
                    self.pages[job] = [scrape(address) for address in group["targets"]]


def scrape(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as response:
        return str(response.read(), "utf-8")


@pytest.mark.end_to_end
def test_a_run_says_where_each_of_its_processes_is_scraped(tmp_path: Path) -> None:
    (run_dir := tmp_path / "run-1").mkdir()
    scraper = Scraper(run_dir)
    Fleet(plan_of(parse_experiment(CONFIG), run_dir.name), run_dir).run(scraper.show)
    assert {group["labels"]["run"] for group in scraper.groups.values()} == {"run-1"}
    (server,) = scraper.pages["pausefl-server"]
    labels = 'dataset="synthetic",model="synthetic",policy="all",run="run-1",run_name="run-1",unit="coordinate"'
    assert f"pausefl_run_info{{{labels}}} 1.0" in server
    hosts = scraper.pages["pausefl-clients"]
    assert len(hosts) == 2
    for host in hosts:
        assert 'pausefl_host_clients{run="run-1"} 2.0' in host
        assert 'pausefl_host_exchanges_total{run="run-1",status="ok"}' in host
        assert 'pausefl_host_epsilon_spent_max{run="run-1",unit="vector"}' in host
    for client_id in ("client-000", "client-001", "client-002", "client-003"):
        label = f'pausefl_host_epsilon_spent{{client="{client_id}",run="run-1",unit="coordinate"}}'
        assert sum(label in host for host in hosts) == 1
    assert json.loads((run_dir / "targets.json").read_text()) == []
    assert "host_metrics" in summary_of(run_dir)["disclosed"]


@pytest.mark.end_to_end
def test_clients_that_have_left_are_scraped_no_more(tmp_path: Path) -> None:
    last, groups = Scraper(tmp_path), {"stay": {"count": 1}, "go": {"count": 1, "leave_round": 5}}
    changes = {"clients.count": 2, "clients.groups": groups, "clients.per_process": 1, "selection.m": 1}
    changes |= {"experiment.rounds": 60, "latency.delay": {"kind": "constant", "value_s": 0.05}}
    Fleet(plan_of(parse_experiment(CONFIG, changes), "run"), tmp_path).run(last.show)
    addresses = [address for group in last.groups.values() for address in group["targets"]]
    assert len(addresses) == 2, "the server and the process that stays"


def test_one_port_for_many_processes_is_bad_input_and_a_process_is_scraped_where_it_listens_now(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^metrics\.client_port = 9465: 2 client processes run here"):
        Fleet(plan_of(parse_experiment(CONFIG, ["metrics.client_port=9465"]), "run"), tmp_path)
    targets = Targets(tmp_path)
    for address in ("127.0.0.1:9001", "0.0.0.0:9002"):
        targets.add("pausefl-client-000", MetricsServed(f"http://{address}/metrics"))
    (group,) = json.loads((tmp_path / "targets.json").read_text())
    assert group["targets"] == ["127.0.0.1:9002"]
    Targets(tmp_path / "moved").clear()  # raises nothing that would hide why the run has ended


def test_a_client_process_that_ends_again_and_again_is_given_up_unless_it_lasted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 1000.0
    monkeypatch.setattr(fleet, "time", SimpleNamespace(monotonic=lambda: now_s))
    client = fleet._ClientProcess(0, plan_of(parse_experiment(CONFIG), "run").processes[0], starts_at_s=now_s)
    tried = [(client.schedule_restart(), client.starts_at_s - now_s) for _ in range(6)]
    assert tried == [*((True, 2.0**n) for n in range(5)), (False, 32.0)]
    now_s = client.starts_at_s + 61.0
    assert (client.schedule_restart(), client.restarts) == (True, 1)


def test_a_process_that_ended_is_told_by_the_last_line_of_a_process_not_by_anothers_end(tmp_path: Path) -> None:
    log = tmp_path / "clients.log"
    add_warning(log, "an event of " + "many words " * 90)
    assert (len(how_it_ended(-9, log)) < 350 + len(str(log)), log.stat().st_mode & 0o077) == (True, 0)
    log.write_text("  | out of memory\n  +-----\n")  # as of an error in a group
    for name in ("one", "another"):
        said = f"{name} ended{how_it_ended(-9, log)}"
        assert said == f"{name} ended (exit code -9), see {log}: out of memory"
        add_warning(log, said)
