"""What Prometheus scrapes: the numbers are right, and deploy/METRICS.md describes exactly these metrics."""

import gzip
import re
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from pausefl_client.jobs import AnsweredJob
from pausefl_client.metrics import HostMetrics
from pausefl_client.privacy.ledger import Ledger, Life, ReleaseKey
from pausefl_process.exposition import exposition, of_process
from pausefl_process.http_server import WebServer
from pausefl_proto.tls import Tls
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_server.monitoring.metrics import make_registry
from pausefl_server.monitoring.snapshot import SECONDS
from pausefl_server.monitoring.telemetry import Telemetry
from pausefl_server.records import LogEvent, RoundRecord
from pausefl_server.selection.policies.baselines import All
from pausefl_server.settings import MetricsSettings, RunInfo
from pausefl_server.state import RunState, replay
from rigs.places import ROOT
from rigs.telemetry import BUDGET, MISSES, PARTS_S, SIZE, observation, play, private, registry_of

SPENT = BUDGET.spent
INFO = {"run_name": "runs", "policy": "all", "dataset": "digits", "model": "mlp", "unit": "coordinate"}


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
    for line in (ROOT / "deploy/METRICS.md").read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if (name := re.fullmatch(r"`(pausefl_\w+)`", cells[0])) is not None:
            kind, labels, unit, meaning, query = cells[1:]
            assert name[1] not in found
            found[name[1]] = Row(kind, frozenset(re.findall(r"`(\w+)`", labels)), unit, meaning, query.strip("`"))
    return found


MakeTelemetry = Callable[..., Telemetry]


class LongValid(Tls):
    def ends_at_s(self) -> float:
        return time.time() + 1e9


CERTIFIED = [LongValid("server.pem", "key"), None, Tls(ca="ca.pem")]


@pytest.fixture(scope="module")
def registry(make_telemetry: MakeTelemetry, tmp_path_factory: pytest.TempPathFactory) -> CollectorRegistry:
    info = RunInfo("runs", "all", "digits", "mlp")
    telemetry = make_telemetry(private(), SIZE, clients=12, info=info, is_asynchronous=True)
    play(telemetry)
    return make_registry(telemetry, MetricsSettings(), tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def host_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CollectorRegistry]:
    """The metrics of a client process with two clients. "a" has made two releases."""
    mktemp = tmp_path_factory.mktemp
    with closing(ledger_in(mktemp("a"), 2, Life("run", 100.0))) as a, closing(ledger_in(mktemp("b"))) as b:
        metrics = HostMetrics(["a", "b"], {"a": a, "b": b}, {"coordinate": 1, "vector": SIZE}, client_series_max=2)
        timing = pb.Timing(queue_s=0.25, train_s=2.0, privatise_s=0.125, injected_down_s=0.5, injected_up_s=1.5)
        metrics.count(AnsweredJob("a", "ok", pb.Result(timing=timing, host=pb.Host(loop_lag_s=0.003))))
        metrics.count(AnsweredJob("a", "resent", pb.Result(timing=pb.Timing(queue_s=9.0))))
        yield metrics.registry


def ledger_in(folder: Path, releases: int = 0, life: Life | None = None) -> Ledger:
    ledger = Ledger(folder / "ledger.db", BUDGET, life, unit="coordinate")
    for t in range(1, releases + 1):
        ledger.record(ReleaseKey("run", t, 1, "model"), ledger.next_charge(), "update", memoryview(b""))
    return ledger


def test_a_certificate_that_cannot_be_read_hides_no_others_end() -> None:
    shown = [LongValid("server.pem", "key"), *(Tls(f"gone-{i}.pem", "key") for i in range(9))]
    assert (of_process(shown).get_sample_value("pausefl_certificate_remaining_seconds") or 0) > 0
    assert of_process([None, Tls(ca="ca.pem")]).get_sample_value("pausefl_certificate_remaining_seconds") is None


def test_the_document_is_right_about_all_metrics(registry: CollectorRegistry, host_registry: CollectorRegistry) -> None:
    everything = [m for r in (registry, host_registry, of_process(CERTIFIED)) for m in r.collect()]
    ours = [m for m in everything if m.name.startswith("pausefl_")]
    there = {f"{m.name}_total" if m.type == "counter" else m.name: m for m in ours}
    table = documented()
    assert set(table) == set(there), "deploy/METRICS.md needs a row for each metric"
    for name, metric in there.items():
        row = table[name]
        assert row.type == metric.type, metric.name
        labels = frozenset(label for sample in metric.samples for label in sample.labels) - {"le"}
        assert row.labels == labels, metric.name
        assert row.meaning.startswith(metric.documentation.rstrip(".")), metric.name
        assert (row.unit == "seconds") == name.removesuffix("_total").endswith("_seconds"), "units are base units"
        assert (row.unit == "ratio") == name.endswith("_ratio"), name
        assert not name.endswith(("_ms", "_s", "_percent"))


def test_example_queries_ask_for_documented_metrics_and_labels() -> None:
    table, tested = documented(), (ROOT / "deploy/prometheus/tests/queries.yml").read_text("utf-8")
    for name, row in table.items():
        assert " on (" not in row.query or row.query in tested
        asked = [re.sub(r"_(bucket|sum|count)$", "", m) for m in re.findall(r"pausefl_\w+", row.query)]
        assert name in asked
        assert set(asked) <= set(table)
        assert set(re.findall(r"(\w+)=\"", row.query)) <= row.labels
        assert row.query.count("(") == row.query.count(")")


SAMPLES: list[tuple[str, Mapping[str, str], float]] = [
    ("pausefl_round", {}, 3),
    ("pausefl_rounds", {}, 10),
    ("pausefl_run_info", INFO, 1),
    ("pausefl_last_round_timestamp_seconds", {}, 1000.0),
    ("pausefl_finished", {}, 0),
    ("pausefl_accuracy_ratio", {"split": "test", "metric": "accuracy"}, 0.75),
    ("pausefl_accuracy_ratio", {"split": "validation", "metric": "accuracy"}, 0.5),
    ("pausefl_evaluated_round", {}, 3),
    ("pausefl_evaluator_connected", {}, 0),
    ("pausefl_connected_clients", {}, 11),
    ("pausefl_expected_clients", {}, 12),
    ("pausefl_client_arrivals_total", {}, 20),
    ("pausefl_client_departures_total", {}, 9),
    ("pausefl_rejected_updates_total", {}, 6),
    ("pausefl_round_latency_seconds_count", {}, 3),
    ("pausefl_round_latency_seconds_sum", {}, 4.0),
    ("pausefl_round_latency_seconds_bucket", {"le": "0.5248"}, 1),
    ("pausefl_elapsed_seconds", {}, 3 * 7.0),
    ("pausefl_places", {}, 10),
    ("pausefl_client_at_work_seconds_total", {"client": "b"}, 0.125 + 0.25 + 5 * 0.125),
    ("pausefl_at_work_seconds_total", {}, 1.125 + 5 * 3 * 0.125 + 1.5 + 2.0),
    ("pausefl_staleness_steps_total", {}, 5 * 2),
    ("pausefl_total_latency_seconds", {}, 4.0 + 5 * 0.125),
    ("pausefl_measured_latency_seconds", {}, 1.0 + 0.25 + 0.5),
    *(("pausefl_missed_jobs_total", {"kind": kind}, n) for kind, n in (MISSES | {"timeout": 4 + 2}).items()),
    ("pausefl_censored_rounds_total", {}, 2),
    ("pausefl_late_updates_total", {}, 7),
    ("pausefl_withdrawn_jobs_total", {}, 8),
    ("pausefl_failed_attempts_total", {}, 5),
    ("pausefl_clamped_latencies_total", {}, 4),
    ("pausefl_selection_seconds_count", {}, 3),
    ("pausefl_selection_seconds_sum", {}, 0.009),
    ("pausefl_selection_seconds_bucket", {"le": "0.005248"}, 3),
    ("pausefl_suspect_rounds_total", {"reason": "server loop_lag_s"}, 3),
    ("pausefl_suspect_rounds_total", {"reason": "clients steal_share"}, 0),
    ("pausefl_suspect_observations_total", {}, 2),
    ("pausefl_round_trip_seconds_sum", {}, 1.125),
    *(("pausefl_exchange_part_seconds_sum", {"part": part}, 5 * seconds) for part, seconds in PARTS_S.items()),
    ("pausefl_exchange_part_seconds_sum", {"part": "propagation"}, (0.25 - 0.228) + (0.5 - 0.228)),  # never falls
    ("pausefl_exchange_part_seconds_count", {"part": "injected_up"}, 5),
    ("pausefl_drawn_delay_seconds_sum", {"direction": "down"}, 5 * 0.05),
    ("pausefl_drawn_delay_seconds_bucket", {"direction": "up", "le": "0.2089"}, 5),
    ("pausefl_drawn_delay_seconds_bucket", {"direction": "up", "le": "0.1"}, 0),
    ("pausefl_timing_error_seconds_sum", {}, 0.313 + 0.063 + 3 * 0.062),
    ("pausefl_host_loop_lag_seconds", {"host": "server"}, 0.009),
    ("pausefl_host_loop_lag_seconds", {"host": "clients"}, 0.005),
    ("pausefl_host_timer_overshoot_seconds", {"host": "server"}, 0.01),
    ("pausefl_host_timer_overshoot_seconds", {"host": "clients"}, 0.006),
    ("pausefl_host_steal_ratio", {"host": "server"}, 0.11),
    ("pausefl_host_steal_ratio", {"host": "clients"}, 0.07),
    ("pausefl_host_compute_ratio", {"host": "server"}, 0.12),
    ("pausefl_host_compute_ratio", {"host": "clients"}, 0.8),
    ("pausefl_host_limit", {"of": "loop_lag_s"}, 0.05),
    ("pausefl_client_round_trip_seconds", {"client": "a"}, 0.125),
    ("pausefl_client_round_trip_seconds", {"client": "b"}, 0.25),
    ("pausefl_client_latency_seconds", {"client": "b"}, 0.5),
    ("pausefl_client_ping_seconds", {"client": "b"}, 0.002),
    ("pausefl_down_bytes_total", {}, 5 * 400),
    ("pausefl_up_bytes_total", {}, 5 * 300),
    ("pausefl_client_down_bytes_total", {"client": "a"}, 3 * 400),
    ("pausefl_client_up_bytes_total", {"client": "a"}, 3 * 300),
    ("pausefl_client_selections_total", {"client": "a"}, 4 + 5),
    ("pausefl_client_selections_total", {"client": "b"}, 2 + 5),
    ("pausefl_clients_round_trip_seconds", {"quantile": "0"}, 0.125),
    ("pausefl_clients_round_trip_seconds", {"quantile": "1"}, 0.25),
    ("pausefl_clients_latency_seconds", {"quantile": "0.5"}, 0.375),
    ("pausefl_retired_clients", {}, 1),
    ("pausefl_client_epsilon_spent", {"client": "a", "unit": "coordinate"}, SPENT(3)),
    ("pausefl_client_epsilon_spent", {"client": "a", "unit": "vector"}, SIZE * SPENT(3)),
    ("pausefl_client_epsilon_remaining", {"client": "b", "unit": "coordinate"}, 10.0 - SPENT(2)),
    ("pausefl_client_epsilon_next", {"client": "a", "unit": "coordinate"}, BUDGET.epsilon(4)),
    ("pausefl_client_epsilon_next", {"client": "c", "unit": "coordinate"}, 0.0),  # retired
    ("pausefl_clients_epsilon_spent", {"quantile": "1", "unit": "vector"}, SIZE * SPENT(3)),
    ("pausefl_clients_epsilon_spent", {"quantile": "0.9", "unit": "coordinate"}, 0.2 * SPENT(2) + 0.8 * SPENT(3)),
    ("pausefl_epsilon_spent_max", {"unit": "coordinate"}, SPENT(3)),
    ("pausefl_epsilon_spent_median", {"unit": "coordinate"}, SPENT(2)),
    ("pausefl_epsilon_budget", {"unit": "coordinate"}, 10.0),
    ("pausefl_epsilon_budget", {"unit": "vector"}, 10.0 * SIZE),
    ("pausefl_budgets_end_round", {}, 40),
    ("pausefl_private", {}, 1),
]


def test_every_documented_metric_has_a_sample() -> None:
    sampled = {name for name, _, _ in SAMPLES} | {f"pausefl_host_{name}" for name, _, _ in HOST_SAMPLES}
    elsewhere = {"pausefl_build_info", "pausefl_disk_free_bytes", "pausefl_certificate_remaining_seconds"}
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in sampled} | elsewhere == set(documented())


HOST_SAMPLES = [
    ("clients", {}, 2),
    ("client_info", {"client": "b"}, 1),
    ("exchanges_total", {"status": "ok"}, 1),
    ("exchanges_total", {"status": "resent"}, 1),
    ("train_seconds_sum", {}, 2.0),
    ("queue_seconds_sum", {}, 0.25),
    ("queue_seconds_count", {}, 1),
    ("privatise_seconds_count", {}, 1),
    ("injected_delay_seconds_sum", {"direction": "down"}, 0.5),
    ("injected_delay_seconds_sum", {"direction": "up"}, 1.5),
    ("event_loop_lag_seconds", {}, 0.003),
    ("epsilon_spent", {"client": "a", "unit": "coordinate"}, SPENT(2)),
    ("epsilon_spent", {"client": "b", "unit": "vector"}, 0),
    ("epsilon_all_runs", {"client": "a", "unit": "coordinate"}, SPENT(2)),
    ("epsilon_spent_max", {"unit": "vector"}, SIZE * SPENT(2)),
]


@pytest.mark.parametrize(("name", "labels", "value"), HOST_SAMPLES)
def test_a_host_tells_all(host_registry: CollectorRegistry, name: str, labels: dict[str, str], value: float) -> None:
    assert host_registry.get_sample_value(f"pausefl_host_{name}", labels) == pytest.approx(value)


def test_a_host_of_many_clients_tells_only_the_greatest_leakage_as_soon_as_it_is_spent(tmp_path: Path) -> None:
    with closing(ledger_in(tmp_path)) as ledger:
        metrics = HostMetrics(["a", "b", "c"], dict.fromkeys("abc", ledger), {"vector": 1}, client_series_max=2)
        value = metrics.registry.get_sample_value
        assert value("pausefl_host_epsilon_spent_max", {"unit": "vector"}) == 0
        ledger.record(ReleaseKey("run", 1, 1, "model"), ledger.next_charge(), "update", memoryview(b""))
        assert value("pausefl_host_epsilon_spent_max", {"unit": "vector"}) == SPENT(1)
    assert not [s for m in metrics.registry.collect() for s in m.samples if m.name == "pausefl_host_epsilon_spent"]


def scrape(registry: CollectorRegistry) -> str:
    """The metrics as served over HTTP. The compressed answer must name the same `pausefl_` metrics."""
    told, routes = [], {"/metrics": exposition(lambda: registry, lambda: "runs")}
    with closing(WebServer("127.0.0.1", 0, routes, key="metrics.port")) as server:
        for encoding in ("identity", "gzip"):
            request = urllib.request.Request(f"http://{server.address}/metrics", headers={"Accept-Encoding": encoding})
            with urllib.request.urlopen(request, timeout=10) as response:
                assert response.status == 200
                assert response.headers["Content-Type"].startswith("text/plain")
                body = response.read()
            told.append(str(gzip.decompress(body) if encoding == "gzip" else body, "utf-8"))
    own = [{line.split()[0] for line in text.splitlines() if line.startswith("pausefl_")} for text in told]
    assert own[0] == own[1]
    return told[0]


def test_a_scrape_over_http_tells_the_same(registry: CollectorRegistry) -> None:
    samples = {
        (s.name, frozenset(s.labels.items())): s.value
        for family in text_string_to_metric_families(scrape(registry))
        for s in family.samples
    }
    for name, labels, value in SAMPLES:
        assert samples[name, frozenset({"run": "runs", **labels}.items())] == pytest.approx(value)
    assert all(dict(labels)["run"] == "runs" for _, labels in samples)
    of_run = frozenset({("run", "runs")})
    assert samples["process_resident_memory_bytes", of_run] > 1e6
    assert samples["pausefl_disk_free_bytes", of_run] > 0


def test_quantiles_read_off_the_buckets_are_right_to_a_tenth() -> None:
    bounds = SECONDS[(SECONDS > 0.0045) & (SECONDS < 660)]
    assert (bounds[0], bounds[-1]) == (pytest.approx(0.0048, rel=0.05), pytest.approx(630, rel=0.01))
    assert (bounds[1:] / bounds[:-1]).max() < 1.1


@pytest.mark.parametrize("side", ["registry", "host_registry"])
def test_promtool_finds_nothing_to_complain_about(side: str, request: pytest.FixtureRequest) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool (part of Prometheus) is not installed")
    text = scrape(request.getfixturevalue(side))
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


def test_a_client_of_any_name_can_be_scraped(make_telemetry: MakeTelemetry) -> None:
    """Ids come from clients: quotes, newlines and backslashes must not break the exposition."""
    telemetry, name = make_telemetry(private()), 'a"b\\c\nd{e="f"} 1'
    joined = (LogEvent("joined", name, n_examples=10),)
    record = RoundRecord(1, 1, (name,), None, (observation(name, 1, 0.5),), joined, 1.0, 0.0, 1.0, 0.003)
    replay(RunState.start(All(2), 1), [record], telemetry.round_committed)
    families = list(text_string_to_metric_families(scrape(registry_of(telemetry))))
    (trip,) = [f for f in families if f.name == "pausefl_client_round_trip_seconds"]
    assert [(s.labels, s.value) for s in trip.samples] == [({"run": "runs", "client": name}, 0.5)]
