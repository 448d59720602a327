"""The [latency] table: laws from TOML, groups, two directions, parameters drawn per client, and what is refused."""

from pathlib import Path

import numpy as np
import pytest

from pausefl.experiment.delay_laws.changing import MarkovDelay
from pausefl.experiment.delay_laws.combined import Sum, published_delay
from pausefl.experiment.delay_laws.laws import Constant, Exponential, Gamma
from pausefl.experiment.experiment import Experiment, load_experiment, parse_experiment
from pausefl.experiment.links import processes_of
from pausefl.experiment.server_records import check_policies
from pausefl.runtime.client.links import make_links
from pausefl_proto.errors import ConfigError
from rigs.experiments import delays_of, links_of


def experiment(latency: str) -> Experiment:
    return parse_experiment("[clients]\ncount = 4\n[selection]\nm = 2\n" + latency)


def made_links(parsed: Experiment, ids: list[str] | None = None, seed: int = 1):  # type: ignore[no-untyped-def]  # of make_links
    return make_links(parsed.latency, links_of(parsed), ids or parsed.client_ids, seed)


TABLES = {
    "schedule": 'rounds = [1, 20]\nof = [{kind = "none"}, {kind = "constant", value_s = 0.1}]',
    "drift": 'of = {kind = "exponential", mean_s = 0.1}\nrounds = [1, 100]\nfactors = [1, 2]',
    "day": 'of = {kind = "exponential", mean_s = 0.1}\nperiod_rounds = 24\namplitude = 0.5',
    "outage": 'of = {kind = "none"}\nwindows = [[10, 12], [30, 31]]\nextra_s = 5.0',
    "markov": 'good = {kind = "none"}\nbad = {kind = "constant", value_s = 1.0}\nto_bad = 0.1\nto_good = 0.5',
}


def test_a_number_may_be_drawn_once_per_client() -> None:
    mean_s = 'mean_s = {kind = "lognormal", mean_s = 0.2, sd_s = 0.1}'
    parsed = experiment(f'[latency.delay]\nkind = "gamma"\nshape = 2\n{mean_s}\n')
    means_s = [law.mean_s for law in delays_of(parsed).values()]
    assert len(set(means_s)) == 4
    assert means_s == [law.mean_s for law in delays_of(parsed).values()]
    assert all(isinstance(law, Gamma) for law in delays_of(parsed).values())
    many = parse_experiment(f'[clients]\ncount = 1000\n[latency.delay]\nkind = "exponential"\n{mean_s}\n')
    means = np.array([law.mean_s for law in delays_of(many).values()])
    assert means.mean() == pytest.approx(0.2, abs=5 * 0.1 / 1000**0.5)


def test_halves_are_planned_one_by_one_also_in_another_law_and_chains_of_clients_walk_apart() -> None:
    """The default law is the published halves. Planning all of them anew for each client once took half an hour."""
    slow = '[latency.delay]\nkind = "scale"\nfactor = 10\nof = {kind = "halves"}\n'
    means_s = [law.mean_s for law in delays_of(experiment(slow)).values()]
    assert means_s == [10 * published_delay(k, 4).mean_s for k in range(4)]
    laws = delays_of(experiment(f'[latency.delay]\nkind = "markov"\n{TABLES["markov"]}\n')).values()
    assert len({law.path for law in laws if isinstance(law, MarkovDelay)}) == 4
    many = list(delays_of(parse_experiment("[clients]\ncount = 10_000")).values())
    assert many == [published_delay(k, 10_000) for k in range(10_000)]


def test_both_ways_are_drawn_apart_and_a_whole_exchange_is_split_and_scaled() -> None:
    way = 'kind = "exponential"\nmean_s = '
    parsed = experiment(f"[latency.down]\n{way}0.1\n[latency.up]\n{way}0.4\n")
    ways = np.array([(d.down_s, d.up_s) for d in map(made_links(parsed)["client-000"].draw, range(1, 2001))])
    assert ways.mean(axis=0) == pytest.approx([0.1, 0.4], rel=0.1)
    assert abs(np.corrcoef(ways.T)[0, 1]) < 0.1
    assert delays_of(parsed)["client-000"] == Sum((Exponential(0.1), Exponential(0.4)))
    only_up = made_links(experiment('[latency.up]\nkind = "constant"\nvalue_s = 0.4\n'))["client-000"]
    assert (only_up.draw(1).down_s, only_up.draw(1).up_s) == (0, 0.4)
    whole = experiment('[latency]\ndown_share = 0.25\ntime_scale = 0.1\ndelay = {kind = "constant", value_s = 4}')
    delays = made_links(whole)["client-000"].draw(1)
    assert (delays.down_s, delays.up_s) == pytest.approx((0.1, 0.3))


def test_draws_depend_on_seed_client_and_round_alone() -> None:
    parsed = experiment('[latency.delay]\nkind = "exponential"\nmean_s = 0.1\n')
    forwards = [made_links(parsed)["client-001"].draw(t) for t in range(1, 20)]
    assert forwards == [made_links(parsed, ["client-001"])["client-001"].draw(t) for t in range(19, 0, -1)][::-1]
    assert forwards != [made_links(parsed)["client-002"].draw(t) for t in range(1, 20)]
    assert forwards != [made_links(parsed, seed=2)["client-001"].draw(t) for t in range(1, 20)]


def test_groups_have_laws_and_bandwidths_of_their_own() -> None:
    parsed = experiment(
        '[latency.delay]\nkind = "constant"\nvalue_s = 0.1\n[latency.bandwidth]\nup_bytes_per_s = 1000\n'
        '[[latency.groups]]\nclients = "client-000..client-001"\ndelay = {kind = "constant", value_s = 0.5}\n'
        '[[latency.groups]]\nclients = ["client-003"]\nbandwidth = {up_bytes_per_s = 50}\n'
    )
    plans = links_of(parsed)
    assert [plan.delay for plan in plans.values()] == [Constant(0.5), Constant(0.5), Constant(0.1), Constant(0.1)]
    assert [plan.bandwidth.up_bytes_per_s for plan in plans.values()] == [1000, 1000, 1000, 50]


ACCESS_POINTS = (
    '[[latency.access_points]]\nclients = "client-000..client-001"\ndown_bytes_per_s = 100\n'
    '[[latency.access_points]]\nclients = ["client-003"]\nup_bytes_per_s = 100\n'
)


def test_clients_behind_one_access_point_share_its_buckets_and_a_process() -> None:
    parsed = experiment(ACCESS_POINTS)
    assert processes_of(links_of(parsed), 1) == [["client-002"], ["client-000", "client-001"], ["client-003"]]
    links = made_links(parsed)
    assert links["client-000"].down[0] is links["client-001"].down[0]
    assert links["client-000"].up == ()
    assert links["client-002"].down == links["client-002"].up == ()
    with pytest.raises(ConfigError, match=r"latency.access_points.0: client-001 must run in the same process"):
        made_links(parsed, ["client-000"])
    in_order = [["client-000", "client-001", "client-002"], ["client-003"]]
    assert processes_of(links_of(experiment("")), 3) == in_order, "where there is no access point"


EXPONENTIAL = '[latency.delay]\nkind = "exponential"\nmean_s'
OF_ONE = '[[latency.groups]]\nclients = "client-000"\n'
NETEM = '[latency]\ninjection = "netem"\n[latency.delay]\n'
REFUSED = {
    '[latency.delay]\nkind = "empirical"\nfile = "no.csv"\ncolumn = "s"': 'delay.file = ".*/no.csv": cannot be read',
    '[latency.delay]\nkind = "gaussian"': r"latency.delay.kind = \"gaussian\": must be one of none, constant, normal",
    "[latency.delay]\nvalue_s = 1": "latency.delay.value_s: unknown key; known keys: kind, floor_s, sd_s",
    '[latency.delay]\nkind = "constant"': "latency.delay.value_s: is missing",
    '[latency.delay]\nkind = "constant"\nvalue_s = "1"': "latency.delay.value_s = '1': must be a valid number",
    '[latency.delay]\nkind = "exponential"\nmean = 1': "latency.delay.mean: unknown key; did you mean mean_s",
    '[latency.delay]\nkind = "constant"\nvalue_s = -1': "latency.delay: can draw a negative delay; floor_s",
    '[latency.delay]\nkind = "normal"\nmean_s = 9\nsd_s = 1': "latency.delay: can draw a negative delay; floor_s",
    '[latency.delay]\nkind = "sum"\nof = [{kind = "none"}, {kind = "gamma", mean_s = 1, shape = 0}]': "of.1.shape = 0:",
    '[latency.delay]\nkind = "sum"\nof = 3': "latency.delay.of = 3: must be a list of tables",
    '[latency.delay]\nkind = "floor"\nof = 3\nfloor_s = 0.1': "latency.delay.of = 3: must be a table such as",
    '[latency.down]\nkind = "sum"\nof = [{kind = "halves"}]': 'latency.down.of.0.kind = "halves": .*must be one of',
    '[latency.delay]\nkind = "mixture"\nweights = [0.5]\nof = [{kind = "none"}]': r"delay.weights = \[0.5\]: must sum",
    '[latency.delay]\nkind = "schedule"\nrounds = [1, 1]\nof = [{kind="none"}, {kind="none"}]': r"rounds = \[1, 1\]:",
    '[latency.delay]\nkind = "markov"\npath = 3': "latency.delay.path: unknown key",
    f'{EXPONENTIAL} = {{kind = "gaussian"}}': 'latency.delay.mean_s.kind = "gaussian": must be one of none, constant',
    f'{EXPONENTIAL} = {{kind = "constant", valu_s = 1}}': "mean_s.valu_s: unknown key; did you mean value_s",
    f'{EXPONENTIAL} = {{kind = "constant", value_s = -1}}': "latency.delay.mean_s = -1.0: must be a finite number,",
    f'{OF_ONE}delay = {{kind = "halves"}}': 'latency.groups.0.delay.kind = "halves": .*must be one of none, constant',
    '[latency.delay]\nkind = "halves"\n[latency.up]\nkind = "none"': "latency.delay: a whole exchange's delay goes",
    '[[latency.groups]]\nclients = "client-000..client-009"': 'latency.groups.0.clients = "client-000..client-009"',
    f"{OF_ONE}law = 1": "latency.groups.0.law: unknown key; known keys: bandwidth,",
    OF_ONE + OF_ONE: "latency.groups.1.clients: client-000 is in two of them",
    f'{OF_ONE}delay = {{kind = "gamma", mean_s = 1, shape = -1}}': "latency.groups.0.delay.shape = -1: must be",
    f'{OF_ONE}up = {{kind = "none"}}': r"latency.groups.0.down: is missing; \[latency\] has one law for a whole",
    f"{OF_ONE}delay = {{}}": "latency.groups.0.delay.kind: is missing; must be one",
    '[[latency.groups]]\nclients = []\ndelay = {kind = "none"}': r"latency.groups.0.clients = \[\]: must name at least",
    '[[latency.groups]]\nclients = "client-003..client-001"': '0.clients = "client-003..client-001": the first of a',
    '[[latency.access_points]]\nclients = "client-001"': "latency.access_points.0: needs down_bytes_per_s",
    '[latency.delay]\nkind = "lognormal"\nmean_s = 0.1\nsd_s = 1e200': "latency.delay: draws delays too great",
    '[latency.delay]\nkind = "weibull"\nscale_s = 0.1\nshape = 1e-3': "latency.delay: draws delays too great",
    f'{NETEM}kind = "pareto"\nminimum_s = 0.1\nshape = 0.5': 'injection = "netem": needs laws with a finite mean',
    f'{NETEM}kind = "day"\n{TABLES["day"]}': 'a law of kind = "day" changes with the round',
    "[latency.bandwidth]\ndown_bytes_per_s = 0": "latency.bandwidth.down_bytes_per_s = 0: must be above 0",
    "[latency.bandwidth]\nrate = 1": "latency.bandwidth.rate: unknown key; known keys: burst_bytes, down_bytes_per_s",
    '[latency]\nmode = "total"\ntime_scale = 0.5': 'latency.mode = "total": the drawn time is the whole round trip',
    '[latency]\nmode = "total"\n' + ACCESS_POINTS: 'latency.mode = "total": .* goes without bandwidth',
}


@pytest.mark.parametrize("toml", REFUSED)
def test_bad_input_is_one_line_that_names_the_key(toml: str) -> None:
    with pytest.raises(ConfigError, match=REFUSED[toml]) as refused:
        experiment(toml + "\n")
    assert "\n" not in str(refused.value)


def test_a_csv_may_have_blank_lines_and_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "rtt.csv").write_bytes(b"\xef\xbb\xbfrtt_s\r\n0.1\r\n0.3\r\n\r\n")
    table = f'[latency.delay]\nkind = "empirical"\nfile = "{tmp_path / "rtt.csv"}"\ncolumn = "rtt_s"\n'
    (law, *_) = delays_of(experiment(table)).values()
    assert law.mean_s == pytest.approx(0.2)


def test_a_group_takes_what_it_does_not_say_from_the_others() -> None:
    parsed = experiment("""
[latency]
down = { kind = "constant", value_s = 0.3 }
up = { kind = "constant", value_s = 0.1 }
bandwidth = { down_bytes_per_s = 100, burst_bytes = 7 }
[[latency.groups]]
clients = "client-000"
up = { kind = "constant", value_s = 0.8 }
bandwidth = { up_bytes_per_s = 50 }
""")
    own, other = made_links(parsed)["client-000"].draw(1), made_links(parsed)["client-001"].draw(1)
    assert [(delays.down_s, delays.up_s) for delays in (own, other)] == [(0.3, 0.8), (0.3, 0.1)]
    for links in (links_of(parsed), links_of(parse_experiment(parsed.to_toml()))):
        bandwidth = links["client-000"].bandwidth
        assert (bandwidth.down_bytes_per_s, bandwidth.up_bytes_per_s, bandwidth.burst_bytes) == (100, 50, 7)


def test_an_access_point_is_within_one_group_of_clients() -> None:
    groups = "[clients.groups.a]\ncount = 2\n[clients.groups.b]\ncount = 2\n[selection]\nm = 2\n"
    point = '[[latency.access_points]]\nclients = ["{}", "{}"]\nup_bytes_per_s = 1000\n'
    parse_experiment(groups + point.format("a-000", "a-001"))
    with pytest.raises(ConfigError, match=r"latency.access_points.0.clients: a-001 and b-000 are of different"):
        parse_experiment(groups + point.format("a-001", "b-000"))


@pytest.mark.parametrize("kind", ["schedule", "drift", "day", "outage"])
def test_what_has_no_mean_is_not_told_to_a_policy(kind: str) -> None:
    parsed = experiment(f'[selection.genie]\n[latency.delay]\nkind = "{kind}"\n{TABLES[kind]}\n')
    check_policies(parsed)
    with pytest.raises(ConfigError, match=f'a law of kind = "{kind}" changes with the round, so it has no mean'):
        check_policies(parse_experiment(parsed.to_toml(), ["selection.policy=genie"]))


PINGS = "device,ms\nphone-1,100\nphone-2,300\nphone-1,120\nphone-2,280\nphone-1,140\n"


def with_delays(tmp_path: Path, text: str, more: str, clients: int = 2) -> Experiment:
    (tmp_path / "rtt.csv").write_text(text)
    table = f'{{ kind = "empirical", file = "{tmp_path / "rtt.csv"}", {more} }}'
    return parse_experiment(f"[clients]\ncount = {clients}\n[selection]\nm = 1\n[latency]\ndelay = {table}\n")


def test_each_client_has_the_delays_measured_with_it_as_recorded_and_in_the_unit_that_is_said(tmp_path: Path) -> None:
    columns = 'column = "ms", client_column = "device", unit = "ms"'
    laws = delays_of(with_delays(tmp_path, PINGS, columns))
    assert [law.mean_s for law in laws.values()] == pytest.approx([0.12, 0.29])
    law = delays_of(with_delays(tmp_path, PINGS, f'{columns}, order = "recorded"'))["client-000"]
    draws = [law.sample(np.random.default_rng(), 1, first_round=t)[0] for t in (1, 2, 3, 4)]
    assert draws == pytest.approx([0.1, 0.12, 0.14, 0.1])
    law = delays_of(with_delays(tmp_path, PINGS, 'column = "ms", unit = "s"'))["client-000"]
    assert law.mean_s == pytest.approx(188)
    with pytest.raises(ConfigError, match=r"latency.delay.order = 'random'"):
        with_delays(tmp_path, PINGS, f'{columns}, order = "random"')


def test_a_file_that_names_clients_is_read_by_name_and_one_that_was_corrected_again(tmp_path: Path) -> None:
    """Once a notebook that loaded its experiment again kept the delays of the old file."""
    text = "client,s\nclient-001,0.3\nclient-000,0.1\n"
    columns = 'column = "s", client_column = "client"'
    assert [law.mean_s for law in delays_of(with_delays(tmp_path, text, columns)).values()] == [0.1, 0.3]
    with pytest.raises(ConfigError, match=r'delay.file = ".*rtt.csv": has no client-002'):
        with_delays(tmp_path, text, columns, clients=3)
    with pytest.raises(ConfigError, match="has delays of 1, the experiment has 2 clients"):
        with_delays(tmp_path, "client,s\na,1\n", columns)
    with pytest.raises(ConfigError, match=r"line 1 has no column .* \(it has: device, ms\)"):
        with_delays(tmp_path, PINGS, 'column = "ms", client_column = "x"')
    for ms in (100, 900):
        law = delays_of(with_delays(tmp_path, f"device,ms\np1,{ms}\n", 'column = "ms", unit = "ms"'))["client-000"]
        assert law.mean_s == pytest.approx(ms / 1000)


def test_a_path_begins_in_the_folder_of_the_experiment_file(tmp_path: Path) -> None:
    (tmp_path / "rtt.csv").write_text("s\n0.2\n")
    file = tmp_path / "own.toml"
    file.write_text('[latency.delay]\nkind = "empirical"\nfile = "rtt.csv"\ncolumn = "s"\n')
    loaded = load_experiment(str(file))
    assert {law.mean_s for law in delays_of(loaded).values()} == {0.2}
    assert delays_of(parse_experiment(loaded.to_toml())) == delays_of(loaded)  # from any folder
