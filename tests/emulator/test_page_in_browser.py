"""The live page as a real browser shows it."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from pausefl.experiment.loading import load_experiment
from pausefl.runtime.fleet import Fleet
from pausefl.runtime.plan import plan_of
from pausefl_process.events import MetricsServed, ProgressEvent
from pausefl_process.http_server import WebServer
from pausefl_server.monitoring.page import LivePage
from pausefl_server.monitoring.telemetry import Telemetry
from pausefl_server.records import Evaluation
from pausefl_server.selection.policies.everyone import All
from pausefl_server.state import replay
from rigs.page import INFO, PRIVATE, record, served

MakeTelemetry = Callable[..., Telemetry]
NASTY = "<img src=x onerror=alert(1)>"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
    "--remote-debugging-pipe",
)
PHONE = {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": True}
DESK = {"width": 1280, "height": 900, "deviceScaleFactor": 1, "mobile": False}


class Browser:
    """A headless Chromium with one tab, driven over its debugging pipe (the DevTools protocol)."""

    def __init__(self, executable: str, profile: Path) -> None:
        its_commands, commands = os.pipe()
        answers, its_answers = os.pipe()
        self._commands, self._answers = os.fdopen(commands, "wb"), os.fdopen(answers, "rb")
        # It looks for its ends of the pipes at descriptors 3 and 4.
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
        """Carry out a command of the protocol."""
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
        """Go to a page, until it is loaded."""
        self.events.clear()
        self.do("Page.navigate", url=url)
        while all(event["method"] != "Page.loadEventFired" for event in self.events):
            self.events.append(self._read())

    def complaints(self) -> list[str]:
        """Exceptions nobody caught, and what the page's policy forbade."""
        return [
            json.dumps(event["params"])
            for event in self.events
            if event["method"] == "Runtime.exceptionThrown"
            or (event["method"] == "Log.entryAdded" and event["params"]["entry"]["source"] == "security")
        ]

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression, or what its promise comes to."""
        found = self.do("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Return when a condition on the document holds, looked at again whenever it changes."""
        self.ask(
            f"new Promise((resolve) => {{ const look = () => {{ if ({condition}) resolve(true); }};"
            " new MutationObserver(look).observe(document,"
            " {subtree: true, childList: true, characterData: true, attributes: true}); look(); })"
        )

    def look_like(self, screen: Mapping[str, Any], scheme: str) -> None:
        """A screen, and a colour scheme that its user prefers."""
        self.do("Emulation.setDeviceMetricsOverride", **screen)
        self.do("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.ask("new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)))")

    def press(self, key: str, code: int) -> None:
        """One key, down and up."""
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            self.do("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    def close(self) -> None:
        """End it, with all its processes."""
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


class Visitor:
    """Opens the page before any client is started, which the fleet does only when this returns."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser

    def show(self, event: ProgressEvent) -> None:
        if isinstance(event, MetricsServed):
            assert event.page is not None
            self._browser.open(event.page)
            self._browser.wait_for("document.querySelector('#state').textContent === 'waiting for clients: 0 of 4'")


TEXTS = "(selector) => [...document.querySelectorAll(selector)].map((e) => e.textContent)"


@pytest.mark.end_to_end
@pytest.mark.slow
def test_a_browser_shows_a_real_run(browser: Browser, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    short = ["clients.count=4", "selection.m=2", "experiment.rounds=12", "evaluation.every=3"]
    short += ["latency.time_scale=0.02"]
    browser.look_like(DESK, "light")
    Fleet(plan_of(load_experiment("demo", short), "run"), run_dir).run(Visitor(browser))
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
    names = browser.ask(f"({TEXTS})('#rows td:first-child')")
    assert sorted(names) == [f"client-{k:03}" for k in range(4)]
    assert browser.ask(f"({TEXTS})('#waterfall text.name > title').length") == 2
    assert browser.ask(f"({TEXTS})('#waterfall rect').length") > 8
    summary = json.loads((run_dir / "summary.json").read_text())
    numbers = "".join(browser.ask(f"({TEXTS})('#numbers dd')"))
    assert f"{100 * summary['final_accuracy']:.1f} %" in numbers
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
    replay(All(3), 1, [record(1, ["a", "b", NASTY])], telemetry.round_committed)
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
    telemetry = make_telemetry(PRIVATE, info=INFO)
    replay(All(2), 1, [record(1, ["a", "b"])], telemetry.round_committed)
    telemetry.evaluated(1, Evaluation("test", subset=True, n_examples=9, accuracy=0.75, loss=1.0, metric="R²"))
    with served(telemetry) as (_, address):
        browser.open(f"http://{address}/")
        browser.wait_for("document.querySelector('#numbers').textContent.includes('test R²')")
        assert browser.ask("document.querySelector('#curves-title').textContent") == "R², latency and leakage"
        assert browser.ask("document.querySelector('#metric').textContent") == "R²"
        assert "ccuracy" not in browser.ask("document.querySelector('main').textContent")
    assert browser.complaints() == []


def test_it_comes_back_when_the_server_does(browser: Browser, make_telemetry: MakeTelemetry) -> None:
    telemetry = make_telemetry(PRIVATE, info=INFO)
    with served(telemetry) as (_, address):
        browser.open(f"http://{address}/")
        browser.wait_for("document.querySelector('#state').textContent === 'waiting for clients: 0 of 2'")
    browser.wait_for("document.querySelector('#state').dataset.state === 'lost'")
    replay(All(2), 1, [record(1, ["a", "b"])], telemetry.round_committed)
    page = LivePage(telemetry, Path("/runs/run-1"))
    server = WebServer("127.0.0.1", int(address.rpartition(":")[2]), page.routes, key="metrics.port")
    browser.wait_for("document.querySelectorAll('#rows tr').length === 2")
    page.close()
    server.close()
