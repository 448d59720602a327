"""The live page: its frames, over real HTTP, and in a real browser."""

import http.client
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from pausefl.experiment.experiment import load_experiment
from pausefl.runtime.fleet import Fleet
from pausefl.runtime.plan import plan_of
from pausefl_process.events import MetricsServed, ProgressEvent
from pausefl_process.http_server import WebServer
from pausefl_proto.budget import Budget
from pausefl_server.model.staleness import Asynchronous
from pausefl_server.monitoring.page import READERS_MAX, ROWS_MAX, LivePage, frame
from pausefl_server.monitoring.snapshot import PARTS
from pausefl_server.monitoring.telemetry import Telemetry
from pausefl_server.records import Evaluation, LogEvent, RoundRecord, Timing
from pausefl_server.selection.policies.baselines import All
from pausefl_server.settings import PrivacySettings, RunInfo
from pausefl_server.state import RunState, replay
from rigs import log
from rigs.log import observation

MakeTelemetry = Callable[..., Telemetry]
BUDGET = Budget(epsilon_budget=10.0, eta=0.5)
PRIVATE = PrivacySettings(BUDGET, "coordinate", "agreed")
INFO = RunInfo("run-1", "pause", "digits", "mlp")


def record(t: int, names: list[str], **changes: Any) -> RoundRecord:
    """A round in which all clients answer: number k after k + 1 seconds, and the first name has released most ε."""
    epsilon, next_epsilon = BUDGET.epsilon(t), BUDGET.epsilon(t + 1)
    seen = []
    for k, name in enumerate(names):
        latency: dict[str, Any] = {"timing": Timing(1.0 + k, train_s=0.5), "latency_s": 1.0 + k, "participation": t}
        spent = BUDGET.spent(t) + (1 - k / 1e3) * next_epsilon
        seen.append(observation(name, epsilon=epsilon, epsilon_spent=spent, **latency))
    joined = tuple(LogEvent("joined", name, n_examples=10) for name in names) if t == 1 else ()
    return log.record(t, *seen, events=joined, round_latency_s=float(len(names)), selection_s=0.003, **changes)


def test_a_frame_before_round_1_says_who_is_awaited(make_telemetry: MakeTelemetry) -> None:
    telemetry = make_telemetry(PRIVATE, info=INFO, minimum_clients=30)
    for connected in (1, 2, 3):
        telemetry.arrived("a", connected, 0)
    shown = frame(telemetry.now, telemetry.settings)
    assert (shown["status"], shown["connected"], shown["minimum"]) == ("waiting for clients", 3, 30)
    assert (shown["round"], shown["rounds"], shown["last"]) == (0, 10, None)
    assert shown["clients"] == {"total": 0, "shown_max": ROWS_MAX, "rows": []}
    assert (shown["run"]["policy"], shown["unit"], shown["budget"]) == ("pause", "coordinate", 10.0)
    assert shown["private"]
    json.dumps(shown, allow_nan=False)


def test_a_frame_shows_curves_parts_and_doubts(make_telemetry: MakeTelemetry) -> None:
    telemetry = make_telemetry(PRIVATE, info=INFO)
    second = record(2, ["a", "b"], chosen=("a", "b", "a"), suspect=("clients steal_share",), elapsed_s=5.0)
    replay(RunState.start(All(2), 1), [record(1, ["a", "b"], elapsed_s=2.5), second], telemetry.round_committed)
    telemetry.evaluated(2, Evaluation("test", subset=True, n_examples=9, accuracy=0.75, loss=1.0))
    telemetry.evaluated(2, Evaluation("test", subset=False, n_examples=99, accuracy=0.8, loss=1.0))
    shown = frame(telemetry.now, telemetry.settings)
    json.dumps(shown, allow_nan=False)
    assert shown["accuracy"] == {"test": [[2, 4.0, 5.0, 0.75]]}
    assert shown["evaluations"] == {"test": {"round": 2, "accuracy": 0.8}}
    assert shown["metric"] == "accuracy"
    assert [point[:3] for point in shown["leakage"]] == [[1, 2.0, 2.5], [2, 4.0, 5.0]]
    assert shown["latency"] == [[1, 2.0, 2.5, 2.0, 1.5, 0.5], [2, 4.0, 5.0, 2.0, 1.5, 0.5]]
    assert (shown["signal"], shown["time_scale"]) == ("round trip", 1.0)
    assert shown["leakage"][1][3] == pytest.approx(BUDGET.spent(3), rel=1e-5)
    assert shown["leakage"][1][4] < shown["leakage"][1][3]
    assert (shown["last"]["answered"], shown["last"]["chosen"]) == (2, 2), "a client drawn twice is one client"
    (slow, fast) = shown["last"]["exchanges"]
    assert (slow["client"], fast["client"]) == ("b", "a")
    parts = dict(zip(shown["parts"], slow["parts"], strict=True))
    assert parts == dict.fromkeys(PARTS, 0.0) | {"train": 0.5, "propagation": 1.5}
    (doubt,) = shown["doubts"]
    assert doubt["rounds"] == 1
    assert doubt["advice"].startswith("client hosts, steal_share: the hypervisor")


@pytest.mark.parametrize(("is_asynchronous", "staleness"), [(False, None), (True, 1.5)])
def test_a_frame_shows_who_is_at_work_and_how_stale_updates_are(
    make_telemetry: MakeTelemetry, is_asynchronous: bool, staleness: float | None
) -> None:
    telemetry = make_telemetry(PRIVATE, is_asynchronous=is_asynchronous, asynchronous=Asynchronous(concurrency=2))
    played = record(1, ["a", "b"], elapsed_s=4.0)
    jobs = [replace(o, came_back_s=k, staleness=k) for k, o in enumerate(played.observations, start=1)]
    replay(RunState.start(All(2), 1), [replace(played, observations=tuple(jobs))], telemetry.round_committed)
    shown = frame(telemetry.now, telemetry.settings)
    assert (shown["elapsed_s"], shown["at_work"], shown["places"]) == (4.0, 0.75, 2)
    assert (shown["idle"], shown["staleness"]) == (1 - 0.75 / 2, staleness)
    assert {row["id"]: row["idle"] for row in shown["clients"]["rows"]} == {"a": 0.75, "b": 0.5}


@pytest.mark.parametrize(
    ("model", "every", "said"),
    [("mlp", 5, "Nothing yet."), ("mlp", 0, "at the end alone"), ("synthetic", 5, "the model is synthetic")],
)
def test_a_frame_without_accuracy_says_why_and_one_without_privacy_shows_no_epsilon(
    make_telemetry: MakeTelemetry, model: str, every: int, said: str
) -> None:
    telemetry = make_telemetry(None, info=replace(INFO, model=model), evaluation_every=every)
    replay(RunState.start(All(2), 1), [record(1, ["a", "b"])], telemetry.round_committed)
    shown = frame(telemetry.now, telemetry.settings)
    assert said in shown["no_accuracy"]
    assert (shown["unit"], shown["budget"], shown["leakage"], shown["private"]) == (None, None, [], False)


def test_a_frame_names_the_clients_behind_a_suspect_round(make_telemetry: MakeTelemetry) -> None:
    telemetry, names = make_telemetry(PRIVATE), ["a", "b", "c", "d", "e"]
    played = record(1, names, suspect=("clients steal_share", "server loop_lag_s"))
    robbed = [o if o.client_id == "c" else replace(o, suspect=("clients steal_share",)) for o in played.observations]
    replay(RunState.start(All(5), 1), [replace(played, observations=tuple(robbed))], telemetry.round_committed)
    suspect = frame(telemetry.now, telemetry.settings)["last"]["suspect"]
    assert suspect == ["clients steal_share (a, b, d and 1 more)", "server loop_lag_s"]


def test_of_a_large_fleet_the_first_hundred_by_either_order_are_shown(make_telemetry: MakeTelemetry) -> None:
    telemetry, names = make_telemetry(PRIVATE), [f"c{k:04}" for k in range(1000)]
    replay(RunState.start(All(1000), 1), [record(1, names)], telemetry.round_committed)
    shown = frame(telemetry.now, telemetry.settings)
    assert shown["clients"]["total"] == 1000
    assert [row["id"] for row in shown["clients"]["rows"]] == names[:ROWS_MAX] + names[-ROWS_MAX:]
    assert len(shown["last"]["exchanges"]) == ROWS_MAX
    assert shown["last"]["exchanges"][0]["client"] == names[-1]


@contextmanager
def served(telemetry: Telemetry, port: int = 0) -> Iterator[tuple[LivePage, str]]:
    page = LivePage(telemetry, Path("/runs/run-1"))
    server = WebServer("127.0.0.1", port, page.routes, key="metrics.port")
    try:
        yield page, server.address
    finally:
        page.close()
        server.close()


def get(address: str, path: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(address, timeout=20)
    connection.request("GET", path)
    return connection.getresponse()


def next_frame(stream: http.client.HTTPResponse) -> dict[str, Any] | None:
    """The next frame of the stream; None at its end."""
    while line := stream.readline():
        if line.startswith(b"data: "):
            found: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
            return found
    return None


def test_everything_comes_from_this_server_and_nothing_is_inline(make_telemetry: MakeTelemetry) -> None:
    with served(make_telemetry(PRIVATE)) as (_, address):
        pages = {path: get(address, path) for path in ("/", "/page.js", "/page.css")}
        texts = {path: page.read().decode() for path, page in pages.items()}
    kinds = [page.headers["Content-Type"].split(";")[0] for page in pages.values()]
    assert kinds == ["text/html", "text/javascript", "text/css"]
    policy = pages["/"].headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for text in texts.values():
        assert "https:" not in text
        assert "http:" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "innerHTML" not in texts["/page.js"]
    assert "style=" not in texts["/"]


def test_a_reader_is_shown_what_is_there_then_what_changes_then_the_end(make_telemetry: MakeTelemetry) -> None:
    telemetry = make_telemetry(PRIVATE)
    with served(telemetry) as (page, address):
        stream = get(address, "/events")
        assert stream.headers["Content-Type"] == "text/event-stream"
        assert (next_frame(stream) or {})["round"] == 0
        state = replay(RunState.start(All(2), 1), [record(1, ["a", "b"])], telemetry.round_committed)
        assert (next_frame(stream) or {})["round"] == 1
        assert len((next_frame(get(address, "/events")) or {})["leakage"]) == 1, "a late reader gets all rounds"
        telemetry.finished(state, "all rounds done", ())
        page.close()
        assert (next_frame(stream) or {})["status"] == "finished: all rounds done"
        assert next_frame(stream) is None


def test_a_reader_that_takes_nothing_holds_nobody_up(make_telemetry: MakeTelemetry) -> None:
    """A large fleet's frames fill its socket. Other readers get theirs, rounds go on, and the server closes in time."""
    telemetry, names = make_telemetry(PRIVATE), [f"c{k:04}" for k in range(400)]
    with served(telemetry) as (_, address):
        asleep, awake = get(address, "/events"), get(address, "/events")
        state = replay(RunState.start(All(400), 1), [record(1, names)], telemetry.round_committed)
        assert (next_frame(awake) or {})["round"] in {0, 1}
        telemetry.finished(state, "all rounds done", ())
        while (shown := next_frame(awake)) is not None and not shown["status"].startswith("finished"):
            pass
        assert shown is not None
    asleep.close()


def test_readers_are_bounded_and_leave_their_seats(make_telemetry: MakeTelemetry) -> None:
    with served(make_telemetry(PRIVATE)) as (page, address):
        readers = [get(address, "/events") for _ in range(READERS_MAX)]
        assert [get(address, path).status for path in ("/events", "/")] == [503, 200]
        page.close()
        for reader in readers:
            while next_frame(reader) is not None:
                pass
    with served(make_telemetry(PRIVATE)) as (page, address):
        page.close()
        for _ in range(READERS_MAX + 1):
            stream = get(address, "/events")
            assert stream.status == 200
            while next_frame(stream) is not None:
                pass


def test_the_page_is_there_by_itself_only_on_loopback() -> None:
    def has_page(host: str, page: str) -> bool:
        return load_experiment("demo", {"metrics.host": host, "metrics.page": page}).metrics.has_page

    assert all(has_page(*said) for said in (("127.0.0.1", "auto"), ("localhost", "auto"), ("0.0.0.0", "on")))
    assert not any(has_page(*said) for said in (("0.0.0.0", "auto"), ("127.0.0.1", "off")))


NASTY = "<img src=x onerror=alert(1)>"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WITHOUT = ("gpu", "quic", "sync", "background-networking", "component-update", "dev-shm-usage")
FLAGS = ["--headless", "--no-sandbox", "--no-first-run", "--remote-debugging-pipe"]
FLAGS += [f"--disable-{feature}" for feature in WITHOUT]
PHONE = {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": True}
DESK = {"width": 1280, "height": 900, "deviceScaleFactor": 1, "mobile": False}


class Browser:
    """A headless Chromium with one tab, driven over its debugging pipe (the DevTools protocol)."""

    def __init__(self, executable: str, profile: Path) -> None:
        its_commands, commands = os.pipe()
        answers, its_answers = os.pipe()
        self._commands, self._answers = os.fdopen(commands, "wb"), os.fdopen(answers, "rb")
        # Chromium reads commands from descriptor 3 and writes answers to 4.
        command = ["bash", "-c", f'exec "$@" 3<&{its_commands} 4>&{its_answers}', "browser", executable]
        self._process = subprocess.Popen(
            [*command, *FLAGS, f"--user-data-dir={profile}"],
            pass_fds=(its_commands, its_answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(its_commands)
        os.close(its_answers)
        self._numbers = count(1)
        self.events: list[dict[str, Any]] = []
        self._session = ""
        target = self.do("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.do("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Runtime", "Log", "Page"):
            self.do(f"{domain}.enable")

    def do(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Run a command of the protocol; returns its result."""
        number = next(self._numbers)
        session = {"sessionId": self._session} if self._session else {}
        message = {"id": number, "method": method, "params": parameters, **session}
        self._commands.write(json.dumps(message).encode() + b"\0")
        self._commands.flush()
        while (answer := self._read()).get("id") != number:
            self.events.append(answer)
        assert "error" not in answer, answer
        found: dict[str, Any] = answer["result"]
        return found

    def open(self, url: str) -> None:
        """Open a page and wait until it is loaded."""
        self.events.clear()
        self.do("Page.navigate", url=url)
        while all(event["method"] != "Page.loadEventFired" for event in self.events):
            self.events.append(self._read())

    def complaints(self) -> list[str]:
        """Uncaught exceptions, and what the page's content security policy blocked."""
        return [
            json.dumps(event["params"])
            for event in self.events
            if event["method"] == "Runtime.exceptionThrown"
            or (event["method"] == "Log.entryAdded" and event["params"]["entry"]["source"] == "security")
        ]

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression; for a promise, the value that it resolves to."""
        found = self.do("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Wait until a condition on the document holds; it is checked at every change of the document."""
        self.ask(
            f"new Promise((resolve) => {{ const look = () => {{ if ({condition}) resolve(true); }};"
            " new MutationObserver(look).observe(document,"
            " {subtree: true, childList: true, characterData: true, attributes: true}); look(); })"
        )

    def look_like(self, screen: Mapping[str, Any], scheme: str) -> None:
        """Set the screen and the colour scheme that the user prefers."""
        self.do("Emulation.setDeviceMetricsOverride", **screen)
        self.do("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.ask("new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)))")

    def press(self, key: str, code: int) -> None:
        """Press and release a key."""
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            self.do("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    def close(self) -> None:
        """End the browser and all its processes."""
        self._session = ""
        self.do("Browser.close")
        try:
            self._process.wait(20)
        finally:
            self._process.kill()
            self._commands.close()
            self._answers.close()

    def _read(self) -> dict[str, Any]:
        data = bytearray()
        while (byte := self._answers.read(1)) != b"\0":
            assert byte, "the browser has ended"
            data += byte
        message: dict[str, Any] = json.loads(data)
        return message


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    executable = next(filter(None, map(shutil.which, BROWSERS)), None)
    if executable is None:
        pytest.skip(f"no browser is installed: none of {', '.join(BROWSERS)} is on the PATH")
    browser = Browser(executable, tmp_path / "profile")
    yield browser
    browser.close()


TEXTS = "(selector) => [...document.querySelectorAll(selector)].map((e) => e.textContent)"


@pytest.mark.end_to_end
@pytest.mark.slow
def test_a_browser_shows_a_real_run(browser: Browser, tmp_path: Path) -> None:
    (run_dir := tmp_path / "run").mkdir()
    short: dict[str, float] = {"clients.count": 4, "selection.m": 2, "experiment.rounds": 12, "evaluation.every": 3}
    short["latency.time_scale"] = 0.02
    browser.look_like(DESK, "light")

    def visit(event: ProgressEvent) -> None:
        """Open the page before any client is started: the fleet starts them only after this returns."""
        if isinstance(event, MetricsServed):
            browser.open(event.page or "")
            browser.wait_for("document.querySelector('#state').textContent === 'waiting for clients: 0 of 4'")

    Fleet(plan_of(load_experiment("demo", short), "run"), run_dir).run(visit)
    browser.wait_for("document.querySelector('#state').textContent === 'finished: all rounds done'")
    assert browser.ask("document.querySelector('#rounds').textContent") == "round 12 of 12"
    assert browser.ask("document.querySelector('#progress').value") == 12
    assert browser.ask(f"({TEXTS})('#accuracy polyline').length") == 2
    assert browser.ask("document.querySelector('#accuracy polyline').points.length") == 4
    assert browser.ask("document.querySelector('#leakage polyline').points.length") == 12
    assert browser.ask(f"({TEXTS})('#latency polyline').length") == 3
    assert browser.ask("document.querySelector('#latency-unit').textContent") == "communication, emulated seconds"
    assert "0.02 per emulated one of delay" in browser.ask("document.querySelector('#numbers').textContent")
    assert browser.ask("document.querySelector('#report code').innerText") == str(run_dir / "report.html")
    assert sorted(browser.ask(f"({TEXTS})('#rows td:first-child')")) == [f"client-{k:03}" for k in range(4)]
    assert browser.ask(f"({TEXTS})('#waterfall text.name > title').length") == 2
    assert browser.ask(f"({TEXTS})('#waterfall rect').length") > 8
    summary = json.loads((run_dir / "summary.json").read_text())
    assert f"{100 * summary['final_accuracy']:.1f} %" in "".join(browser.ask(f"({TEXTS})('#numbers dd')"))
    for screen in (PHONE, DESK):
        for scheme in ("light", "dark"):
            browser.look_like(screen, scheme)
            assert browser.ask("document.documentElement.scrollWidth") <= screen["width"], (screen, scheme)
            assert browser.ask("[...document.querySelectorAll('.chart > svg')].every((e) => e.clientWidth > 200)")
    colour = "getComputedStyle(document.body).backgroundColor"
    browser.look_like(PHONE, "dark")
    dark = browser.ask(colour)
    browser.look_like(PHONE, "light")
    assert browser.ask(colour) != dark
    assert browser.complaints() == []


def test_it_can_be_used_with_the_keyboard_alone(browser: Browser, make_telemetry: MakeTelemetry) -> None:
    telemetry = make_telemetry(PRIVATE, info=INFO)
    replay(RunState.start(All(3), 1), [record(1, ["a", "b", NASTY])], telemetry.round_committed)
    with served(telemetry) as (_, address):
        browser.open(f"http://{address}/")
        browser.wait_for("document.querySelectorAll('#rows tr').length === 3")
        assert browser.ask(f"({TEXTS})('#rows td:first-child')") == [NASTY, "b", "a"]
        assert browser.ask("document.querySelectorAll('img').length") == 0
        reached = []
        for _ in range(8):
            browser.press("Tab", 9)
            reached.append(browser.ask("document.activeElement.textContent.trim().slice(0, 20)"))
            assert browser.ask("parseFloat(getComputedStyle(document.activeElement).outlineWidth)") >= 2
            if reached[-1] == "ε spent":
                break
        assert reached[:3] == ["Skip to the clients", "over rounds", "over total latency"]
        browser.press("Enter", 13)
        browser.wait_for("document.querySelector('[data-sort=epsilon]').getAttribute('aria-sort') === 'descending'")
        assert browser.ask("document.querySelector('[data-sort=latency_s]').getAttribute('aria-sort')") == "none"
        assert browser.ask(f"({TEXTS})('#rows td:first-child')") == ["a", "b", NASTY]
    browser.wait_for("document.querySelector('#state').dataset.state === 'lost'")
    assert browser.complaints() == []


def test_a_regression_is_not_shown_as_a_classification(browser: Browser, make_telemetry: MakeTelemetry) -> None:
    telemetry = make_telemetry(PRIVATE, info=INFO, clock="virtual", is_asynchronous=True)
    replay(RunState.start(All(2), 1), [record(1, ["a", "b"], chosen=(), wall_clock_s=1e5)], telemetry.round_committed)
    telemetry.evaluated(1, Evaluation("test", subset=True, n_examples=9, accuracy=0.75, loss=1.0, metric="R²"))
    with served(telemetry) as (_, address):
        browser.open(f"http://{address}/")
        browser.wait_for("document.querySelector('#numbers').textContent.includes('test R²')")
        assert browser.ask("document.querySelector('#curves-title').textContent") == "R², latency and leakage"
        assert browser.ask("document.querySelector('#metric').textContent") == "R²"
        numbers = browser.ask("document.querySelector('#numbers').textContent")
        assert "27:46:40virtual seconds" in numbers, "more than a day, which foretells no time left"
        assert browser.ask("document.querySelector('#waterfall-note').textContent").startswith("Step 1: 2 updates; ")
        page = browser.ask("document.body.innerText").lower().replace("round trip", "")
        assert [word for word in ("accuracy", "round") if word in page] == []
    assert browser.complaints() == []


def test_it_comes_back_when_the_server_does(browser: Browser, make_telemetry: MakeTelemetry) -> None:
    telemetry = make_telemetry(PRIVATE, info=INFO)
    with served(telemetry) as (_, address):
        browser.open(f"http://{address}/")
        browser.wait_for("document.querySelector('#state').textContent === 'waiting for clients: 0 of 2'")
    browser.wait_for("document.querySelector('#state').dataset.state === 'lost'")
    replay(RunState.start(All(2), 1), [record(1, ["a", "b"])], telemetry.round_committed)
    with served(telemetry, int(address.rpartition(":")[2])):
        browser.wait_for("document.querySelectorAll('#rows tr').length === 2")
