"""Latency laws fitted to measurements, and the published file formats, each read and played."""

import gzip
import json
import pickle
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pausefl
from pausefl.cli import main
from pausefl.experiment.delay_laws.base import Delay
from pausefl.experiment.delay_laws.changing import MarkovDelay
from pausefl.experiment.delay_laws.combined import Mixture
from pausefl.experiment.delay_laws.laws import (
    Constant,
    Exponential,
    Gamma,
    LogNormal,
    Normal,
    Pareto,
    Values,
    Weibull,
)
from pausefl.experiment.experiment import parse_experiment
from pausefl.experiment.measured.censoring import kaplan_meier
from pausefl_offline.fitting import LEAST_VALUES, fit_law
from pausefl_offline.latencies import ClientLatencies, latencies_of
from pausefl_offline.plots import draw_fit, greatest_distance
from pausefl_proto.errors import ConfigError
from rigs.experiments import delays_of
from rigs.log import fresh_store, observation, record
from rigs.places import TESTS

pytestmark = pytest.mark.usefixtures("quickly_written")

N = 2000


def drawn(law: Delay, n: int = N, seed: int = 0) -> ClientLatencies:
    return ClientLatencies(law.sample(np.random.default_rng(seed), n), np.arange(1, n + 1))


mean_s = st.floats(0.05, 5.0)
LAWS = st.one_of(
    st.builds(lambda m, v: LogNormal(m, m * v), mean_s, st.floats(0.3, 1.2)),
    st.builds(Exponential, mean_s),
    st.builds(Gamma, mean_s, st.floats(0.5, 6.0)),
    st.builds(Weibull, mean_s, st.floats(0.6, 3.0)),
    st.builds(Pareto, mean_s, st.floats(2.5, 6.0)),
    st.builds(lambda m, v: Normal(m, m * v), mean_s, st.floats(0.02, 0.15)),
)


@settings(max_examples=15)
@given(LAWS, st.integers(0, 1000))
def test_a_law_drawn_from_a_family_is_found_again(law: Delay, seed: int) -> None:
    """The distance to the true law (Kolmogorov–Smirnov) is below 0.05, and the mean within 10 %, with 2000 draws."""
    fitted = fit_law(drawn(law, seed=seed)).law
    assert greatest_distance(law.points(), np.sort(fitted.points())) < 0.05
    assert fitted.mean_s == pytest.approx(law.mean_s, rel=0.1)


TWO_PEAKS = Mixture((Normal(0.2, 0.01), Normal(0.9, 0.02)), (0.5, 0.5))


def test_few_values_are_their_own_law_and_independent_latencies_get_no_memory() -> None:
    assert fit_law(drawn(Constant(0.25))).table["kind"] == "constant"
    assert fit_law(drawn(TWO_PEAKS)).table["kind"] == "values"
    few = drawn(Exponential(0.3), LEAST_VALUES - 1)
    fitted = fit_law(few)
    assert fitted.table["kind"] == "values"
    assert isinstance(fitted.law, Values)
    assert fitted.law.values_s == pytest.approx(np.sort(few.seconds), rel=1e-5)
    assert "markov" not in [fit_law(drawn(LogNormal(0.2, 0.1), 300, seed)).table["kind"] for seed in range(8)]


@pytest.mark.parametrize("every", [1, 3])
def test_a_link_with_two_states_keeps_them(every: int) -> None:
    """With `every` = 3, only every third round, on average, was observed."""
    whole = drawn(MarkovDelay(LogNormal(0.1, 0.02), LogNormal(0.6, 0.15), 0.05, 0.15, path=3), 4000)
    kept = np.random.default_rng(1).random(4000) < 1 / every
    fitted = fit_law(ClientLatencies(whole.seconds[kept], whole.round[kept])).law
    assert isinstance(fitted, MarkovDelay)
    assert fitted.good.mean_s == pytest.approx(0.1, rel=0.05)
    assert fitted.bad.mean_s == pytest.approx(0.6, rel=0.1)
    assert (fitted.to_bad, fitted.to_good) == pytest.approx((0.05, 0.15), rel=0.4)


def cut(law: Delay, others: Delay, n: int) -> ClientLatencies:
    """Latencies of rounds that end when another client answers, which censors slower answers."""
    rng = np.random.default_rng(6)
    seconds, ends_s = law.sample(rng, n), others.sample(rng, n)
    came = seconds <= ends_s
    return ClientLatencies(seconds[came], np.flatnonzero(came) + 1, ends_s[~came])


@pytest.mark.parametrize(
    ("law", "kind"),
    [
        (LogNormal(0.5, 0.2), "lognormal"),
        (Gamma(0.5, 3.0), "gamma"),
        (Weibull(0.5, 2.5), "weibull"),
        (Normal(0.5, 0.1), "normal"),
        (Exponential(0.5), "exponential"),
        (Pareto(0.3, 4.0), "pareto"),
    ],
)
def test_a_family_is_found_also_of_a_slow_client_that_is_seldom_waited_for(law: Delay, kind: str) -> None:
    """At least two fifths of its answers are censored, and the slow ones more than the fast ones."""
    assert fit_law(drawn(law)).table["kind"] == kind
    latencies = cut(law, LogNormal(0.45, 0.25), N)
    assert len(latencies.bounds_s) > 0.4 * N
    fitted = fit_law(latencies)
    assert fitted.table["kind"] == ("weibull" if kind == "exponential" else kind), "with a shape of 1.0"
    assert fitted.law.mean_s == pytest.approx(law.mean_s, rel=0.05)


def test_probes_that_are_lost_at_random_do_not_stretch_the_law_and_those_too_slow_do() -> None:
    of_answers, timeout_s = LogNormal(0.1, 0.04), np.full(12, 5.0)
    table = fit_law(ClientLatencies(of_answers.sample(np.random.default_rng(2), 188), np.arange(188), timeout_s)).table
    assert (table["kind"], table["of"][0]["kind"], table["of"][1]["value_s"]) == ("mixture", "lognormal", 5.0)
    assert (table["of"][0]["mean_s"], table["weights"][1]) == (pytest.approx(0.1, rel=0.1), pytest.approx(0.06))
    slow = LogNormal(3.0, 1.5).sample(np.random.default_rng(2), 200)
    fitted = fit_law(ClientLatencies(slow[slow < 5], np.arange(200)[slow < 5], np.full((slow >= 5).sum(), 5.0)))
    assert fitted.table["kind"] == "lognormal"
    assert fitted.law.mean_s == pytest.approx(3.0, rel=0.1)


@pytest.mark.parametrize("n", [15, 300])
def test_values_stand_for_those_that_were_not_waited_for(n: int) -> None:
    latencies = cut(TWO_PEAKS, LogNormal(0.8, 0.4), n)
    fitted = fit_law(latencies)
    assert fitted.table["kind"] == "values"
    assert fitted.law.mean_s == pytest.approx(0.55, rel=0.15)
    assert fitted.law.mean_s > latencies.seconds.mean() + 0.1


def test_a_lower_bound_hands_its_share_to_what_is_later() -> None:
    points, shares = kaplan_meier(np.array([3.0, 1.0]), np.array([2.0, 4.0]))
    assert points.tolist() == [1.0, 3.0, 4.0]
    assert shares == pytest.approx([1 / 4, 3 / 8, 3 / 8])
    never = ClientLatencies(np.empty(0), np.empty(0, np.int64), np.array([0.5, 0.7]))
    assert fit_law(never).table == {"kind": "values", "values_s": [0.5, 0.7]}


def test_a_run_gives_the_bounds_of_those_it_did_not_wait_for(tmp_path: Path) -> None:
    changes = {"experiment.rounds": 20, "experiment.clock": "virtual", "clients.count": 6, "selection.policy": "random"}
    over = {"selection.m": 2, "selection.over_selection": 1.0, "workload.model": "synthetic"}
    played = pausefl.run(pausefl.load("demo", changes | over), tmp_path / "run", progress=False)
    fit = pausefl.fit_latency(tmp_path / "run")
    assert sum(len(of.bounds_s) for of in fit.latencies.values()) == played.summary["unneeded_jobs"] == 40
    slowest = max(fit.latencies, key=lambda name: len(fit.latencies[name].bounds_s))
    note = f"{len(fit.latencies[slowest].bounds_s)} lower bounds): few of its exchanges were waited for"
    assert note in fit.to_toml()
    assert draw_fit(fit).axes


def test_a_latency_of_a_step_belongs_to_the_step_whose_model_was_given() -> None:
    with fresh_store() as (store, path):
        for t, seen in enumerate(([observation("a")], [], [], [observation("a", staleness=2)]), 1):
            store.commit_round(record(t, *seen))
        assert latencies_of(path.parent)["a"].round.tolist() == [1, 2]


@pytest.mark.parametrize(("signal", "timeout_s"), [("round_trip", 5.0), ("communication", 0.5)])
def test_a_deadline_stays_as_long_as_it_was_beside_the_latencies(signal: str, timeout_s: float, tmp_path: Path) -> None:
    """Deadlines are in real seconds. Whole round trips are fitted at another time scale than the run's."""
    changes = {"experiment.rounds": 6, "experiment.clock": "virtual", "clients.count": 3, "selection.policy": "all"}
    scaled = {"latency.time_scale": 0.1, "latency.signal": signal, "server.round_timeout_s": 0.5}
    law = {"latency.delay": {"kind": "lognormal", "mean_s": 2.0, "sd_s": 0.2}, "workload.model": "synthetic"}
    experiment = pausefl.load("demo", {"selection.m": 2, "evaluation.every": 0} | changes | scaled | law)
    played = pausefl.run(experiment, tmp_path / "run", progress=False).summary
    fitted = pausefl.fit_latency(tmp_path / "run").experiment
    assert fitted.round_timeout_s == timeout_s
    assert fitted.selection == parse_experiment((tmp_path / "run/config.toml").read_text()).selection
    assert set(delays_of(fitted)) == set(experiment.client_ids)
    again = pausefl.run(fitted, tmp_path / "again", progress=False).summary
    assert (played["rounds"], played["missed_jobs"]) == (again["rounds"], again["missed_jobs"]) == (6, {})


def fleet(folder: Path, rows: int = 60) -> Path:
    rng = np.random.default_rng(0)
    lines = ["client,time,seconds"]
    for name, law in (("hub!", LogNormal(0.2, 0.1)), ("watch", Gamma(0.8, 3.0)), ("hub", Constant(0.05))):
        lines += [f'"{name}",{t},{s}' for t, s in enumerate(law.sample(rng, rows))]
    path = folder / "fleet.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_what_is_written_is_the_experiment_that_was_fitted(tmp_path: Path) -> None:
    fit = pausefl.fit_latency(fleet(tmp_path))
    text = fit.to_toml()
    again = parse_experiment(text)
    laws = {fit.client_ids[name]: fitted.law for name, fitted in fit.laws.items()}
    assert delays_of(again) == laws == delays_of(fit.experiment)
    assert "# hub-2 is 'hub!': " in text
    assert fit.client_ids == {"hub!": "hub-2", "watch": "watch", "hub": "hub"}
    assert again.client_ids == ["hub-2", "watch", "hub"]
    assert len(draw_fit(fit).axes) == 3


@pytest.mark.parametrize(
    ("rows", "unit", "seconds"),
    [("3,0.3,a\n1,0.1,a\n2,0.2,a", None, [0.1, 0.2, 0.3]), ("1,231,a", "ms", [0.231]), ("1,231,a", "s", [231.0])],
)
def test_rows_are_taken_in_the_order_of_their_times_and_in_the_unit_said(
    rows: str, unit: Literal["s", "ms"] | None, seconds: list[float], tmp_path: Path
) -> None:
    path = tmp_path / "fleet.csv"
    path.write_text(f"time,seconds,client\n{rows}\n")
    assert pausefl.fit_latency(path, unit=unit).latencies["a"].seconds == pytest.approx(seconds)
    with pytest.raises(pausefl.ConfigError, match=r'^unit = "min": must be one of s, ms, us$'):
        pausefl.fit_latency(path, unit="min")  # type: ignore[arg-type]  # on purpose


def test_ping_needs_no_times_and_of_a_small_fleet_half_is_chosen(tmp_path: Path) -> None:
    reply = "64 bytes from 10.0.0.{0}: icmp_seq={1} ttl=9 time={0}.{1} ms\n"
    (tmp_path / "ping.log").write_text("".join(reply.format(host, i) for host in (1, 2) for i in (1, 2)))
    fit = pausefl.fit_latency(tmp_path / "ping.log", format="ping")
    assert {name: of.seconds.tolist() for name, of in fit.latencies.items()} == {
        "10.0.0.1": pytest.approx([0.0011, 0.0012]), "10.0.0.2": pytest.approx([0.0021, 0.0022])
    }  # fmt: skip
    assert fit.experiment.selection.m == 1


def test_values_lie_where_they_were_measured(tmp_path: Path) -> None:
    """The law is the data itself: rounding of digits must not show as a distance between the two."""
    path, long = tmp_path / "fleet.csv", "https://edge.example.net/health"
    path.write_text(f"client,time,seconds\na,1,0.08707592589\na,2,0.09073598673\n{long},1,0.30000025933526\n")
    figure = draw_fit(pausefl.fit_latency(path))
    titles = ["a\nvalues, 0.00 apart", "https://edge.example.net/h\nealth\nconstant, 0.00 apart"]
    assert [axes.get_title("left") for axes in figure.axes] == titles
    measured = [axes.lines[0] for axes in figure.axes]
    assert [line.get_drawstyle() for line in measured] == ["steps-post", "steps-post"]
    assert np.asarray(measured[0].get_xydata()).tolist() == [[0.0870759, 0.0], [0.0870759, 0.5], [0.090736, 1.0]]
    assert np.asarray(measured[1].get_xydata()).tolist() == [[0.3, 0.0], [0.3, 1.0]]


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path) -> None:
    (tmp_path / "devices").write_bytes(pickle.dumps({1: Path("/")}))
    with pytest.raises(ConfigError, match=r"is no pickle of plain values \(holds pathlib"):
        pausefl.fit_latency(tmp_path / "devices", format="fedscale")


SAMPLES = {path.stem: path.read_bytes() for path in (TESTS / "emulator/published").iterdir()}
"""A file in each format, as its program writes it; german.csv is from a spreadsheet with German settings."""
CAPACITY = {1: {"computation": 52.5, "communication": 5647.6}, 2: {"computation": 116.0, "communication": 2647.6}}
BEHAVIOUR = {
    1: {"duration": 99342, "inactive": [65881, 133574], "active": [0, 100044], "model": "CPH1801"},
    2: {"duration": 60000, "inactive": [], "active": [60000.5], "model": "SM-A600FN"},
}
ATLAS_BY_LINE = b"\n".join(json.dumps(each).encode() for each in json.loads(SAMPLES["ripe-atlas"]))
LOCUST_TOTAL = re.sub(rb"\d+,1,(GET|POST),.*\n", b"", SAMPLES["locust"])


@dataclass(frozen=True)
class Published:
    """A file, the options to read it with, and the expected latencies of each client in milliseconds, in order."""

    written: bytes
    latencies_ms: dict[str, list[float]]
    lost: tuple[int, ...] = ()
    """How many probes of each client were lost."""

    def has(self, seconds: float, client: str) -> bool:
        """Whether the file has this latency of the client, or lost probes."""
        possible = [ms / 1000 for ms in self.latencies_ms[client]] + [2.0] * bool(self.lost)
        return any(seconds == pytest.approx(each) for each in possible)

    def write(self, folder: Path) -> Path:
        (folder / "published").write_bytes(self.written)
        return folder / "published"

    @property
    def options(self) -> dict[str, Any]:
        return {"timeout_s": 2.0} if self.lost else {}


TWO, AGAIN = {"a": [11.6, 12.6], "b": [31.6, 32.6]}, [31.6, 32.6, 1101]
PUBLISHED = {
    "ping": Published(SAMPLES["ping"], {"hub.example": TWO["a"], "2001-db8-1": AGAIN, "off.example": []}, (2, 1, 1)),
    "ripe-atlas": Published(SAMPLES["ripe-atlas"], {"6001": TWO["a"], "6002": TWO["b"]}, (1, 1)),
    "ripe-atlas, a line each": Published(ATLAS_BY_LINE, {"6001": TWO["a"], "6002": TWO["b"]}, (1, 1)),
    "iperf3": Published(SAMPLES["iperf3"], {"10.0.0.1": TWO["a"]}),
    "prometheus": Published(SAMPLES["prometheus"], {"10.0.0.1-9115": TWO["a"], "https-b.example": TWO["b"]}),
    "k6": Published(SAMPLES["k6"], {"https-a.example-q-1": TWO["a"], "https-b.example": TWO["b"]}, (0, 1)),
    "locust": Published(SAMPLES["locust"], {"a": [11, 12], "b": [31]}),
    "locust, of all": Published(LOCUST_TOTAL, {"Aggregated": [21]}),
    "ndt": Published(SAMPLES["ndt"], {"203.0.113.7": TWO["a"], "2001-db8-5": [31.6]}),
    "wondernetwork": Published(gzip.compress(SAMPLES["wondernetwork"]), {"10": TWO["a"], "57": [31.6]}),
    "fedscale": Published(pickle.dumps(CAPACITY), {"1": [52.5], "2": [116.0]}),
    "csv, UTF-16": Published(SAMPLES["german"].decode().encode("utf-16"), {"hub": TWO["a"]}),
    "csv, compressed": Published(gzip.compress(SAMPLES["german"]), {"hub": TWO["a"]}),
}
SMALL = {"experiment.rounds": 2, "experiment.clock": "virtual", "selection.policy": "all"}


def fitted(file: Path, capsys: pytest.CaptureFixture[str], *options: str) -> Path:
    """The experiment that the command makes of a file."""
    main(["fit-latency", str(file), *options])
    experiment = file.with_name("latency.toml")
    experiment.write_text(capsys.readouterr().out)
    return experiment


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_file_is_fitted_and_played(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    published, form = PUBLISHED[name], name.partition(",")[0]
    file = published.write(tmp_path)
    options = [f"--{key.replace('_', '-')}={value}" for key, value in published.options.items()]
    experiment = fitted(file, capsys, "--format", form, *options)
    assert pausefl.load(experiment).client_ids == [*published.latencies_ms]
    read = pausefl.fit_latency(file, format=form, **published.options).latencies.values()
    for of, written_ms in zip(read, published.latencies_ms.values(), strict=True):
        assert of.seconds == pytest.approx([ms / 1000 for ms in written_ms])
    assert tuple(len(of.bounds_s) for of in read) == (published.lost or (0,) * len(published.latencies_ms))

    seen = pausefl.run(pausefl.load(experiment, SMALL), tmp_path / "run", progress=False).columns("observations")
    assert len(seen["client_id"]) == 2 * len(published.latencies_ms)
    for client, latency_s in zip(seen["client_id"], seen["latency_s"], strict=True):
        assert published.has(latency_s, client)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_file_can_be_the_delays_of_an_experiment(name: str, tmp_path: Path) -> None:
    published, form = PUBLISHED[name], name.partition(",")[0]
    table = {"kind": "empirical", "file": str(published.write(tmp_path)), "format": form} | published.options
    named = {"client_column": "client"} if form == "csv" else {}
    changes = {"clients.count": len(published.latencies_ms), "selection.m": 1, "latency.delay": table | named}
    for law, client in zip(delays_of(pausefl.load("demo", changes)).values(), published.latencies_ms, strict=True):
        assert isinstance(law, Values)
        assert all(published.has(value, client) for value in law.values_s)


def test_fedscales_devices_come_and_go_by_their_traces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A round stands for 20,000 s. Device 1 is available in rounds 1 to 3 and 6, device 2 from round 4."""
    (tmp_path / "client_device_capacity").write_bytes(pickle.dumps(CAPACITY))
    (tmp_path / "client_behave_trace").write_bytes(pickle.dumps(BEHAVIOUR))
    options = ("--format", "fedscale", "--figure", str(tmp_path / "fit.png"))
    experiment = fitted(tmp_path / "client_device_capacity", capsys, *options)
    assert (tmp_path / "fit.png").stat().st_size > 0
    trace = {"kind": "trace", "path": str(tmp_path / "client_behave_trace"), "round_s": 20_000.0}
    phones = {"count": 2, "ids": ["1", "2"], "availability": trace}
    changes = SMALL | {"experiment.rounds": 6, "clients.ids": [], "clients.groups": {"phones": phones}}
    chosen = pausefl.run(pausefl.load(experiment, changes), tmp_path / "run", progress=False).columns("choices")
    assert list(zip(chosen["round"].tolist(), chosen["client_id"].tolist(), strict=True)) == [
        (1, "1"), (2, "1"), (3, "1"), (4, "2"), (5, "2"), (6, "1"), (6, "2")
    ]  # fmt: skip
