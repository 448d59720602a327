"""Latencies and presence as others publish them, each played from its file to a run."""

import gzip
import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import pausefl
from pausefl.cli import main
from pausefl.experiment.delay_laws import Empirical
from rigs.links import delays_of

PING = """PING hub.example (10.0.0.1) 56(84) bytes of data.
[1767225600.104512] 64 bytes from hub.example (10.0.0.1): icmp_seq=1 ttl=57 time=11.6 ms
[1767225602.104512] no answer yet for icmp_seq=2
[1767225602.604512] 64 bytes from hub.example (10.0.0.1): icmp_seq=3 ttl=57 time=12.6 ms
[1767225602.604513] 64 bytes from hub.example (10.0.0.1): icmp_seq=3 ttl=57 time=12.9 ms (DUP!)
[1767225603.604513] From 10.0.0.254 icmp_seq=4 Destination Host Unreachable

--- hub.example ping statistics ---
4 packets transmitted, 2 received, +1 duplicates, +1 errors, 50% packet loss, time 3004ms
rtt min/avg/max/mdev = 11.600/12.366/12.900/0.556 ms
PING 2001:db8::1(2001:db8::1) 56 data bytes
[1767225700.104512] 64 bytes from 2001:db8::1: icmp_seq=1 ttl=57 time=31.6 ms
[1767225703.104512] 64 bytes from 2001:db8::1: icmp_seq=4 ttl=57 time=32.6 ms
[1767225703.204512] 64 bytes from 2001:db8::1: icmp_seq=3 ttl=57 time=1101 ms
PING off.example (10.0.0.9) 56(84) bytes of data.

--- off.example ping statistics ---
1 packets transmitted, 0 received, 100% packet loss, time 0ms
"""


def of_atlas(probe: int, *result: Mapping[str, object]) -> dict[str, Any]:
    text = """{"fw": 5080, "mver": "2.6.2", "lts": 12, "dst_name": "193.0.14.129", "af": 4, "dst_addr": "193.0.14.129",
    "src_addr": "192.168.1.4", "proto": "ICMP", "ttl": 58, "size": 32, "result": [], "dup": 0, "rcvd": 2, "sent": 3,
    "min": 11.6, "max": 12.6, "avg": 12.1, "msm_id": 1001, "prb_id": 6001, "timestamp": 1767225600, "msm_name": "Ping",
    "from": "192.0.2.7", "type": "ping", "group_id": 1001, "step": 240, "stored_timestamp": 1767225660}"""
    found: dict[str, Any] = json.loads(text) | {"prb_id": probe, "result": result}
    return found


ATLAS = [
    of_atlas(6001, {"rtt": 11.6}, {"x": "*"}, {"rtt": 12.6}),
    of_atlas(6002, {"rtt": 31.6, "ttl": 57}, {"error": "sendto failed"}, {"rtt": 32.6}, {"rtt": 33.1, "dup": 1}),
]


def of_iperf3(socket: int, start: float, rtt: int) -> dict[str, Any]:
    more = """{"seconds": 1.0, "bytes": 117440512, "bits_per_second": 9395240.0, "retransmits": 0, "snd_cwnd": 1451612,
    "snd_wnd": 3145728, "rttvar": 48, "pmtu": 1500, "omitted": false, "sender": true}"""
    found: dict[str, Any] = json.loads(more) | {"socket": socket, "start": start, "end": start + 1, "rtt": rtt}
    return found


IPERF3 = {
    "start": {
        "connected": [
            {"socket": 5, "local_host": "10.0.0.2", "local_port": 51234, "remote_host": "10.0.0.1", "remote_port": 5201}
        ],
        "version": "iperf 3.16",
        "timestamp": {"time": "Thu, 01 Jan 2026 00:00:00 GMT", "timesecs": 1767225600},
        "test_start": {"protocol": "TCP", "num_streams": 1, "duration": 2},
    },
    "intervals": [
        {"streams": [of_iperf3(5, 0, 11600)], "sum": {"start": 0, "end": 1.0, "bytes": 117440512}},
        {"streams": [of_iperf3(5, 1.000123, 12600)], "sum": {"start": 1.0, "end": 2.0, "bytes": 117440512}},
    ],
    "end": {"streams": [], "cpu_utilization_percent": {"host_total": 1.2}},
}


def of_prometheus(instance: str, *seconds: str) -> dict[str, Any]:
    metric = {"__name__": "probe_duration_seconds", "instance": instance, "job": "blackbox"}
    return {"metric": metric, "values": [[1767225600 + 60.5 * t, value] for t, value in enumerate(seconds)]}


PROMETHEUS = {
    "status": "success",
    "data": {
        "resultType": "matrix",
        "result": [
            of_prometheus("10.0.0.1:9115", "0.0116", "0.0126"),
            of_prometheus("https://b.example/", "0.0316", "0.0326"),
        ],
    },
}
K6 = """metric_name,timestamp,metric_value,check,error,error_code,expected_response,group,method,name,proto,\
scenario,service,status,subproto,tls_version,url,extra_tags,metadata
http_reqs,1767225600,1.000000,,,,true,,GET,https://a.example/?q=1,HTTP/1.1,default,,200,,,https://a.example/?q=1,,
http_req_duration,1767225600,11.600000,,,,true,,GET,https://a.example/?q=1,HTTP/1.1,default,,200,,,https://a.example/?q=1,,
http_req_blocked,1767225600,0.001000,,,,true,,GET,https://a.example/?q=1,HTTP/1.1,default,,200,,,https://a.example/?q=1,,
http_req_duration,1767225601,31.600000,,,,true,,GET,https://b.example/,HTTP/1.1,default,,200,,,https://b.example/,,
http_req_duration,1767225602,12.600000,,,,true,,GET,https://a.example/?q=1,HTTP/1.1,default,,200,,,https://a.example/?q=1,,
http_req_duration,1767225603,32.600000,,,,true,,GET,https://b.example/,HTTP/1.1,default,,200,,,https://b.example/,,
vus,1767225604,1.000000,,,,,,,,,,,,,,,,
"""
LOCUST = """Timestamp,User Count,Type,Name,Requests/s,Failures/s,50%,66%,75%,80%,90%,95%,98%,99%,99.9%,99.99%,100%,\
Total Request Count,Total Failure Count,Total Median Response Time,Total Average Response Time,Total Min Response Time,\
Total Max Response Time,Total Average Content Size
1767225600,1,GET,/a,0.0,0.0,N/A,N/A,N/A,N/A,N/A,N/A,N/A,N/A,N/A,N/A,N/A,0,0,0,0.0,0,0,0
1767225600,1,,Aggregated,0.0,0.0,N/A,N/A,N/A,N/A,N/A,N/A,N/A,N/A,N/A,N/A,N/A,0,0,0,0.0,0,0,0
1767225601,1,GET,/a,1.0,0.0,11,12,12,12,12,12,12,12,12,12,12,9,0,11,11.4,11.1,12.2,97
1767225601,1,POST,/b,1.0,0.0,31,32,32,32,32,32,32,32,32,32,32,9,0,31,31.4,31.1,32.2,97
1767225601,1,,Aggregated,2.0,0.0,21,32,32,32,32,32,32,32,32,32,32,18,0,21,21.4,11.1,32.2,97
1767225602,1,GET,/a,1.0,0.0,12,12,12,12,12,12,12,12,12,12,12,19,0,12,11.9,11.1,12.2,97
"""
LOCUST_TOTAL = "".join(line for line in LOCUST.splitlines(keepends=True) if "GET" not in line and "POST" not in line)
NDT = """id,date,a_UUID,a_TestTime,a_CongestionControl,a_MeanThroughputMbps,a_MinRTT,a_LossRate,client_IP
ndt-1,2026-01-01,ndt-1_1,2026-01-01 00:01:00 UTC,bbr,93.1,12.6,0.0,203.0.113.7
ndt-2,2026-01-01,ndt-1_2,2026-01-01 00:00:00.500000 UTC,bbr,93.1,11.6,0.0,203.0.113.7
ndt-3,2026-01-01,ndt-1_3,2026-01-01 00:01:00.123456 UTC,bbr,3.1,31.6,0.0,2001:db8::5
"""
WONDERNETWORK = b""""source","destination","timestamp","min","avg","max","mdev"
"10","57","2020-07-19 00:00:00","11.1","11.6","12.0","0.2"
"10","58","2020-07-19 00:00:01","12.1","12.6","13.0","0.2"
"57","10","2020-07-19 00:00:00","31.1","31.6","32.0","0.2"
"""
CAPACITY = {1: {"computation": 52.5, "communication": 5647.6}, 2: {"computation": 116.0, "communication": 2647.6}}
BEHAVIOUR = {
    1: {
        "duration": 99342,
        "inactive": [65881, 133574],
        "finish_time": 518400,
        "active": [0, 100044],
        "model": "CPH1801",
    },
    2: {"duration": 60000, "inactive": [], "finish_time": 518400, "active": [60000.5], "model": "SM-A600FN"},
}
GERMAN = "Client;Time;Seconds\n\nhub;2026-01-01T00:01:00+00:00;0,0126\nhub;2026-01-01T00:00:00Z;0,0116\n"


@dataclass(frozen=True)
class Published:
    """A file, the options it is read with, and the milliseconds it has of each client, in their order."""

    written: str | bytes
    latencies_ms: dict[str, list[float]]
    lost: tuple[int, ...] = ()
    """How many probes of each client were lost."""

    def has(self, seconds: float, client: str) -> bool:
        """Whether the file says so of a latency of this client, or that a probe was lost."""
        possible = [ms / 1000 for ms in self.latencies_ms[client]] + [2.0] * bool(self.lost)
        return any(seconds == pytest.approx(each) for each in possible)

    def write(self, folder: Path) -> Path:
        (folder / "published").write_bytes(self.written if isinstance(self.written, bytes) else self.written.encode())
        return folder / "published"

    @property
    def options(self) -> dict[str, Any]:
        return {"timeout_s": 2.0} if self.lost else {}


TWO = {"a": [11.6, 12.6], "b": [31.6, 32.6]}
PUBLISHED = {
    "ping": Published(PING, {"hub.example": TWO["a"], "2001-db8-1": [31.6, 32.6, 1101], "off.example": []}, (2, 1, 1)),
    "ripe-atlas": Published(json.dumps(ATLAS), {"6001": TWO["a"], "6002": TWO["b"]}, (1, 1)),
    "ripe-atlas, a line each": Published(
        "\n".join(map(json.dumps, ATLAS)), {"6001": TWO["a"], "6002": TWO["b"]}, (1, 1)
    ),
    "iperf3": Published(json.dumps(IPERF3, indent="\t"), {"10.0.0.1": TWO["a"]}),
    "prometheus": Published(json.dumps(PROMETHEUS), {"10.0.0.1-9115": TWO["a"], "https-b.example": TWO["b"]}),
    "k6": Published(K6, {"https-a.example-q-1": TWO["a"], "https-b.example": TWO["b"]}),
    "locust": Published(LOCUST, {"a": [11, 12], "b": [31]}),
    "locust, of all": Published(LOCUST_TOTAL, {"Aggregated": [21]}),
    "ndt": Published(NDT, {"203.0.113.7": TWO["a"], "2001-db8-5": [31.6]}),
    "wondernetwork": Published(gzip.compress(WONDERNETWORK), {"10": TWO["a"], "57": [31.6]}),
    "fedscale": Published(pickle.dumps(CAPACITY), {"1": [52.5], "2": [116.0]}),
    "csv, UTF-16": Published(GERMAN.encode("utf-16"), {"hub": TWO["a"]}),
    "csv, compressed": Published(gzip.compress(GERMAN.encode()), {"hub": TWO["a"]}),
}
SMALL = {"experiment.rounds": 2, "experiment.clock": "virtual", "selection.policy": "all"}


def fitted(file: Path, capsys: pytest.CaptureFixture[str], *options: str) -> Path:
    """The experiment that the command makes of a file."""
    main(["fit-latency", str(file), *options])
    experiment = file.with_name("latency.toml")
    experiment.write_text(capsys.readouterr().out)
    return experiment


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_file_is_played_by_what_fit_latency_makes_of_it(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    published, form = PUBLISHED[name], name.partition(",")[0]
    file = published.write(tmp_path)
    options = [f"--{key.replace('_', '-')}={value}" for key, value in published.options.items()]
    experiment = fitted(file, capsys, "--format", form, *options)
    assert pausefl.load(experiment).client_ids == [*published.latencies_ms]
    read = pausefl.fit_latency(file, format=form, **published.options).latencies.values()
    assert [of.seconds.tolist() for of in read] == [
        pytest.approx([ms / 1000 for ms in each]) for each in published.latencies_ms.values()
    ]
    assert tuple(len(of.bounds_s) for of in read) == (published.lost or (0,) * len(published.latencies_ms))

    played = pausefl.run(pausefl.load(experiment, SMALL), tmp_path / "run", progress=False)
    seen = played.columns("observations")
    assert len(seen["client_id"]) == 2 * len(published.latencies_ms)
    for client, latency_s in zip(seen["client_id"], seen["latency_s"], strict=True):
        assert published.has(latency_s, client)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_file_can_be_the_delays_of_an_experiment(name: str, tmp_path: Path) -> None:
    published, form = PUBLISHED[name], name.partition(",")[0]
    file = published.write(tmp_path)
    table = {"kind": "empirical", "file": str(file), "format": form} | published.options
    named = {"client_column": "client"} if form == "csv" else {}
    changes = {"clients.count": len(published.latencies_ms), "selection.m": 1, "latency.delay": table | named}
    laws = delays_of(pausefl.load("demo", changes)).values()
    for law, client in zip(laws, published.latencies_ms, strict=True):
        assert isinstance(law, Empirical)
        assert all(published.has(value, client) for value in law.values_s)


def test_fedscales_devices_come_and_go_by_their_behaviour_traces(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A round stands for 20,000 s: the first device is there in rounds 1 to 3 and 6, the other from round 4."""
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
