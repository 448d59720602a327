"""What Prometheus scrapes: the numbers are right, and deploy/METRICS.md describes exactly these metrics."""

import re
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from pausefl.budget import Budget
from pausefl.errors import ConfigError
from pausefl_server.metrics import MetricsServer, ServerMetrics
from pausefl_server.records import Evaluation, Event, Observation, RoundRecord, Timing
from pausefl_server.selection.everyone import All
from pausefl_server.settings import Privacy
from pausefl_server.state import RunState

DOCUMENT = Path(__file__).parent.parent / "deploy/METRICS.md"
BUDGET = Budget(epsilon_budget=10.0, eta=0.5)
SIZE = 1000


@dataclass(frozen=True)
class Row:
    """One line of the document's table."""

    type: str
    labels: frozenset[str]
    unit: str
    meaning: str
    query: str


def documented() -> dict[str, Row]:
    """The document's table by metric name."""
    found = {}
    for line in DOCUMENT.read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if (name := re.fullmatch(r"`(pausefl_\w+)`", cells[0])) is not None:
            kind, labels, unit, meaning, query = cells[1:]
            assert name[1] not in found
            found[name[1]] = Row(kind, frozenset(re.findall(r"`(\w+)`", labels)), unit, meaning, query.strip("`"))
    return found


def observation(client_id: str, i: int, round_trip_s: float) -> Observation:
    return Observation(
        client_id=client_id,
        timing=Timing(round_trip_s),
        latency_s=2 * round_trip_s,
        n_examples=10,
        participation=i,
        epsilon=BUDGET.epsilon(i) if i else 0.0,
        epsilon_spent=BUDGET.spent(i),
    )


DOUBTS = ("server loop_lag_s",)


def play(metrics: ServerMetrics, *, private: bool = True) -> None:
    """Two rounds: "a" answers twice, "b" once and then retires; an evaluation and a rejection."""
    state = RunState.start(All(2), seed=1)
    joins = (Event("joined", "a", n_examples=10), Event("joined", "b", n_examples=10))
    rounds = [
        ((observation("a", int(private), 0.5), observation("b", int(private), 0.25)), joins),
        ((observation("a", 2 * private, 0.125),), (Event("retired", "b"),)),
    ]
    for t, (observations, events) in enumerate(rounds, start=1):
        latency_s = max(o.latency_s for o in observations)
        chosen = ("a", "b") if t == 1 else ("a", "a")
        record = RoundRecord(t, 1, chosen, None, observations, events, latency_s, float(t), 0.003, "", suspect=DOUBTS)
        state.before_round(t, events)
        state.after_round(record)
        metrics.round_committed(record, state, budgets_end=40)
    for connected in (1, 2, 3):
        metrics.arrived(connected)
    metrics.departed(2)
    metrics.rejected()
    metrics.pinged("b", 0.002)
    metrics.evaluated(Evaluation("test", subset=False, n_examples=100, accuracy=0.75, loss=1.0))


def private_metrics(unit: str = "coordinate") -> ServerMetrics:
    return ServerMetrics(Privacy(BUDGET, unit, "agreed"), SIZE)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def registry() -> CollectorRegistry:
    metrics = private_metrics()
    play(metrics)
    return metrics.registry


def exposed_name(name: str, kind: str) -> str:
    return f"{name}_total" if kind == "counter" else name


def test_the_document_lists_exactly_the_metrics_there_are(registry: CollectorRegistry) -> None:
    there = {exposed_name(m.name, m.type) for m in registry.collect()}
    assert set(documented()) == there


def test_the_document_is_right_about_types_labels_and_meanings(registry: CollectorRegistry) -> None:
    table = documented()
    for metric in registry.collect():
        row = table[exposed_name(metric.name, metric.type)]
        assert row.type == metric.type, metric.name
        labels = frozenset(label for sample in metric.samples for label in sample.labels) - {"le"}
        assert row.labels == labels, metric.name
        assert row.meaning.startswith(metric.documentation.rstrip(".")), metric.name
        assert row.unit


def test_names_are_in_base_units() -> None:
    for name, row in documented().items():
        assert (row.unit == "seconds") == name.endswith("_seconds"), name
        assert (row.unit == "ratio") == name.endswith("_ratio"), name
        assert (row.type == "counter") == name.endswith("_total"), name
        assert not name.endswith(("_ms", "_s", "_percent"))


def test_example_queries_ask_for_documented_metrics_and_labels() -> None:
    table = documented()
    for name, row in table.items():
        asked = [re.sub(r"_(bucket|sum|count)$", "", m) for m in re.findall(r"pausefl_\w+", row.query)]
        assert name in asked
        assert set(asked) <= set(table)
        assert set(re.findall(r"(\w+)=\"", row.query)) <= row.labels
        assert row.query.count("(") == row.query.count(")")


SAMPLES = [
    ("pausefl_round", {}, 2),
    ("pausefl_accuracy_ratio", {"split": "test"}, 0.75),
    ("pausefl_connected_clients", {}, 2),
    ("pausefl_rejected_updates_total", {}, 1),
    ("pausefl_round_latency_seconds_count", {}, 2),
    ("pausefl_round_latency_seconds_sum", {}, 1.25),
    ("pausefl_round_latency_seconds_bucket", {"le": "0.5"}, 1),
    ("pausefl_total_latency_seconds", {}, 1.25),
    ("pausefl_selection_seconds_count", {}, 2),
    ("pausefl_selection_seconds_bucket", {"le": "0.005"}, 2),
    ("pausefl_client_round_trip_seconds", {"client": "a"}, 0.125),
    ("pausefl_client_round_trip_seconds", {"client": "b"}, 0.25),
    ("pausefl_client_latency_seconds", {"client": "a"}, 0.25),
    ("pausefl_client_ping_seconds", {"client": "b"}, 0.002),
    ("pausefl_suspect_rounds_total", {"reason": "server loop_lag_s"}, 2),
    ("pausefl_client_selections_total", {"client": "a"}, 3),
    ("pausefl_client_selections_total", {"client": "b"}, 1),
    ("pausefl_client_epsilon_spent", {"client": "a", "unit": "coordinate"}, BUDGET.spent(2)),
    ("pausefl_client_epsilon_spent", {"client": "a", "unit": "vector"}, SIZE * BUDGET.spent(2)),
    ("pausefl_client_epsilon_remaining", {"client": "b", "unit": "coordinate"}, 10.0 - BUDGET.spent(1)),
    ("pausefl_client_epsilon_next", {"client": "a", "unit": "coordinate"}, BUDGET.epsilon(3)),
    ("pausefl_epsilon_spent_max", {"unit": "coordinate"}, BUDGET.spent(2)),
    ("pausefl_epsilon_spent_median", {"unit": "coordinate"}, (BUDGET.spent(1) + BUDGET.spent(2)) / 2),
    ("pausefl_epsilon_budget", {"unit": "coordinate"}, 10.0),
    ("pausefl_epsilon_budget", {"unit": "vector"}, 10.0 * SIZE),
    ("pausefl_retired_clients", {}, 1),
    ("pausefl_budgets_end_round", {}, 40),
    ("pausefl_private", {}, 1),
]


@pytest.mark.parametrize(("name", "labels", "value"), SAMPLES)
def test_samples_are_what_happened(
    registry: CollectorRegistry, name: str, labels: dict[str, str], value: float
) -> None:
    assert registry.get_sample_value(name, labels) == pytest.approx(value)


def test_where_the_unit_is_the_vector_it_stands_once() -> None:
    metrics = private_metrics("vector")
    play(metrics)
    assert metrics.registry.get_sample_value("pausefl_epsilon_budget", {"unit": "vector"}) == 10.0
    assert metrics.registry.get_sample_value("pausefl_epsilon_budget", {"unit": "coordinate"}) is None


def test_without_privacy_no_epsilon_is_shown() -> None:
    metrics = ServerMetrics(None, SIZE)
    play(metrics, private=False)
    about_epsilon = [m for m in metrics.registry.collect() if "epsilon" in m.name]
    assert about_epsilon
    assert all(not m.samples for m in about_epsilon)
    assert metrics.registry.get_sample_value("pausefl_private") == 0
    assert metrics.registry.get_sample_value("pausefl_round") == 2


def test_noise_that_can_be_drawn_again_is_not_called_private() -> None:
    metrics = ServerMetrics(Privacy(BUDGET, "coordinate", "agreed", reproducible_noise=True), SIZE)
    assert metrics.registry.get_sample_value("pausefl_private") == 0


def test_two_servers_in_one_process_do_not_share_their_metrics() -> None:
    one, other = private_metrics(), private_metrics()
    one.rejected()
    assert other.registry.get_sample_value("pausefl_rejected_updates_total") == 0


@pytest.fixture
def endpoint(registry: CollectorRegistry) -> Iterator[MetricsServer]:
    server = MetricsServer(registry, "127.0.0.1", 0)
    yield server
    server.close()


def scrape(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as response:
        assert response.status == 200
        assert response.headers["Content-Type"].startswith("text/plain")
        return str(response.read(), "utf-8")


def test_a_scrape_over_http_tells_the_same(endpoint: MetricsServer) -> None:
    samples = {
        (s.name, frozenset(s.labels.items())): s.value
        for family in text_string_to_metric_families(scrape(endpoint.url))
        for s in family.samples
    }
    for name, labels, value in SAMPLES:
        assert samples[name, frozenset(labels.items())] == pytest.approx(value)


def test_promtool_finds_nothing_to_complain_about(endpoint: MetricsServer) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool (part of Prometheus) is not installed")
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=scrape(endpoint.url), capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr


def test_a_closed_endpoint_answers_no_more_and_frees_its_port(registry: CollectorRegistry) -> None:
    server = MetricsServer(registry, "127.0.0.1", 0)
    port = int(server.url.split(":")[2].split("/")[0])
    server.close()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_a_taken_port_is_bad_input(registry: CollectorRegistry) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"metrics\.port = {port}: cannot listen on 127\.0\.0\.1:{port}"):
            MetricsServer(registry, "127.0.0.1", port)


def test_a_client_of_any_name_can_be_scraped() -> None:
    """Ids come from clients: quotes, newlines and backslashes must not break the exposition."""
    metrics, name = private_metrics(), 'a"b\\c\nd{e="f"} 1'
    state = RunState.start(All(2), seed=1)
    joined = (Event("joined", name, n_examples=10),)
    record = RoundRecord(1, 1, (name,), None, (observation(name, 1, 0.5),), joined, 1.0, 1.0, 0.003, "")
    state.before_round(1, joined)
    state.after_round(record)
    metrics.round_committed(record, state)
    server = MetricsServer(metrics.registry, "127.0.0.1", 0)
    families = list(text_string_to_metric_families(scrape(server.url)))
    server.close()
    (trip,) = [f for f in families if f.name == "pausefl_client_round_trip_seconds"]
    assert [(s.labels, s.value) for s in trip.samples] == [({"client": name}, 0.5)]
