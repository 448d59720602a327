"""Links made by the kernel: the commands to the kernel, refused settings, and real links where the machine allows."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pausefl.cli import main
from pausefl.experiment.experiment import parse_experiment
from pausefl.runtime.client.links import make_links
from pausefl.runtime.netem import Shape, probe, shapes
from pausefl_proto.errors import ConfigError
from rigs.command import played, summary_of, synthetic
from rigs.experiments import links_of

NETEM = '[latency]\ninjection = "netem"\ntime_scale = 0.5\ndown_share = 0.25\n'
RUN = {
    "clients.count": 2,
    "selection.policy": "random",
    "selection.m": 1,
    "privacy.enabled": False,
    "latency.bandwidth": {"down_bytes_per_s": 4_000_000, "up_bytes_per_s": 4_000_000},
    "workload.model_bytes": 200_000,
}


def lacking(*kinds: str) -> str:
    """The reason why this machine cannot use these qdiscs; empty if it can."""
    try:
        probe(set(kinds))
    except ConfigError as error:
        return str(error)
    return ""


def ways(toml: str) -> tuple[Shape, Shape]:
    parsed = parse_experiment(NETEM + toml)
    return shapes(links_of(parsed)["client-000"], parsed.latency.down_share, parsed.latency.time_scale)


def test_a_law_becomes_a_delay_and_a_jitter_of_its_mean_and_spread() -> None:
    down, up = ways('[latency.delay]\nkind = "normal"\nmean_s = 0.4\nsd_s = 0.02\nfloor_s = 0.0\n')
    assert (down.delay_s, up.delay_s) == pytest.approx((0.05, 0.15), rel=1e-3)
    assert (down.jitter_s, up.jitter_s) == pytest.approx((3**0.5 * 0.0025, 3**0.5 * 0.0075), rel=1e-2)
    (netem,) = up.qdiscs()
    assert (netem["kind"], netem["delay"]) == ("netem", 150_000)  # in microseconds
    assert netem["jitter"] == pytest.approx(12_990, rel=0.01)


@pytest.mark.parametrize(
    ("law", "message"),
    [
        ('[latency.delay]\nkind = "exponential"\nmean_s = 0.1', r"latency\.delay of client-000 has a spread of 0\.1 s"),
        (
            '[latency.up]\nkind = "lognormal"\nmean_s = 0.2\nsd_s = 0.3\n',
            r"latency\.up of client-000 .* mean of 0\.2 s netem keeps at most mean/√3 = 0\.115 s",
        ),
        (
            '[latency.down]\nkind = "pareto"\nminimum_s = 0.1\nshape = 0.9',
            r"a finite mean, not latency\.down of client",
        ),
    ],
)
def test_a_law_that_netem_cannot_spread_is_refused(law: str, message: str) -> None:
    """Once an exponential law of mean 0.1 s silently got a spread of 0.058 s."""
    with pytest.raises(ConfigError, match=f'^latency.injection = "netem": [^\n]*{message}[^\n]*$'):
        parse_experiment(NETEM + law)


def test_the_widest_law_that_netem_keeps_passes() -> None:
    """netem draws uniformly on (0, 2 mean): its spread is mean/√3."""
    _, up = ways('[latency.up]\nkind = "lognormal"\nmean_s = 0.2\nsd_s = 0.115\n')
    assert up.jitter_s == pytest.approx(up.delay_s, rel=0.01)
    assert up.jitter_s <= up.delay_s


def test_bandwidth_becomes_a_tbf_below_the_delay() -> None:
    down, up = ways('[latency.bandwidth]\ndown_bytes_per_s = 1000\n[latency.down]\nkind = "constant"\nvalue_s = 0.2\n')
    netem, tbf = down.qdiscs()
    assert (netem["delay"], up.qdiscs()) == (100_000, [])
    assert (tbf["kind"], tbf["parent"], tbf["rate"]) == ("tbf", "1:1", 2000)  # half the time scale, twice the rate


def test_clients_inject_nothing_where_the_kernel_does() -> None:
    parsed = parse_experiment(NETEM)
    assert make_links(parsed.latency, links_of(parsed), parsed.client_ids, 1)["client-029"].draw(1).down_s == 0


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("[clients]\nper_process = 2\n", "goes with clients.per_process = 1"),
        ("[clients]\nper_process = 1\ncount = 1024\n", "goes with at most 1023 clients, not 1024"),
        ('[[latency.access_points]]\nclients = "client-000"\n', "without access_points"),
        (
            '[latency.delay]\nkind = "day"\nof = {kind = "constant", value_s=1}\nperiod_rounds = 9\namplitude = 0.1\n',
            "changes with the round",
        ),
    ],
)
def test_what_neither_namespaces_nor_netem_can_do_is_refused(toml: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ways(toml)


@pytest.mark.skipif(os.geteuid() != 0, reason="the probe reaches the kernel as root only")
def test_a_kernel_without_netem_is_one_clear_line() -> None:
    pytest.importorskip("pyroute2")
    if not (reason := lacking("netem")):
        pytest.skip("this kernel has netem")
    assert reason.startswith("--netem: ")
    assert "\n" not in reason


LIFE = """
import os, signal, sys
from pathlib import Path
from pausefl.experiment.experiment import parse_experiment
from pausefl.runtime.netem import _name, enter_namespace, kernel_network
from pausefl.runtime.plan import plan_of
plan, run_dir = plan_of(parse_experiment(sys.argv[1]), "run"), Path(sys.argv[2])
if sys.argv[3] == "enter":
    enter_namespace(plan.clients.latency, plan.clients.links, run_dir, "client-001", sys.argv[4])
else:
    with kernel_network(plan.network, run_dir) as address:
        print(address, flush=True)
        if sys.argv[3] == "build and be killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if sys.argv[3] == "build and lose":
            os.system("ip netns delete " + _name(run_dir, "client-000"))
"""


@pytest.mark.parametrize("qdisc", ["tbf", "netem"])
def test_what_was_killed_can_be_started_again(tmp_path: Path, qdisc: str) -> None:
    """A client process finds its namespace as the one before left it; a new run removes what the killed run left."""
    if reason := lacking(qdisc):
        pytest.skip(reason)
    toml = """
        clients.count = 2
        selection.m = 1
        latency.injection = "netem"
        latency.delay.kind = "none"
    """
    toml += {
        "tbf": "latency.bandwidth = { down_bytes_per_s = 4e6, up_bytes_per_s = 4e6 }",
        "netem": 'latency.up = { kind = "constant", value_s = 0.1 }',
    }[qdisc]

    def live(what: str, *more: str, run: str = "run") -> tuple[int, str]:
        command = [sys.executable, "-c", LIFE, toml, str(tmp_path / run), what, *more]
        done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
        return done.returncode, done.stdout.strip()

    status, server = live("build and be killed")
    assert status == -signal.SIGKILL
    assert [live("enter", server)[0], live("enter", server)[0]] == [0, 0]
    status, others = live("build", run="another")  # another run beside it has namespaces of its own
    assert (status, others == server) == (0, False)
    assert live("build and be killed")[0] == -signal.SIGKILL
    assert live("build") == (0, server)
    assert live("build and lose") == (0, server), "what others remove does not hide how a run has ended"
    assert "pf" not in subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout


@pytest.mark.end_to_end
@pytest.mark.realtime
def test_the_kernels_bucket_agrees_with_the_clients(tmp_path: Path) -> None:
    """tbf counts headers too, 4.5 % of a full packet, so times are 3 to 15 % longer. No namespace is left behind."""
    if reason := lacking("tbf"):
        pytest.skip(reason)
    played("run", synthetic(tmp_path, rounds=8, more=RUN), "--netem", "--run-dir", tmp_path / "run", timeout_s=150)
    computed_s = 2 * (200_000 - 16_384) / 4_000_000
    assert 1.03 < summary_of(tmp_path / "run")["timing_error_s"]["p50"] / computed_s < 1.15
    assert "pf" not in subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout


def test_the_flag_and_set_go_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", str(synthetic(tmp_path, more=RUN)), "--run-dir", str(tmp_path / "run")]
    for more in (["--netem"], ["--netem", "--set", "clients.count=4"], ["--set", "clients.per_process=2", "--netem"]):
        with pytest.raises(SystemExit):
            main([*arguments, *more, "--set", "clients.per_process=2"])
        assert "goes with clients.per_process = 1" in capsys.readouterr().err
