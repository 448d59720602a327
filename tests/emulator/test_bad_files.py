"""Wrong files that users bring: one line with the place and the option that helps, status 2, and nothing left."""

import gzip
import json
import pickle
import re
from pathlib import Path

import pytest

from pausefl.cli import main

EXPERIMENT = """
[experiment]
rounds = 2
clock = "virtual"
[clients.groups.phones]
count = 2
[selection]
m = 1
[workload]
model = "synthetic"
"""


def complaint(capsys: pytest.CaptureFixture[str], folder: Path, *arguments: str) -> str:
    """The one line that a command says of a file, after the file's name."""
    before = sorted(folder.rglob("*"))
    with pytest.raises(SystemExit) as ended:
        main([*arguments])
    said = capsys.readouterr()
    (line,) = said.err.splitlines()
    assert (ended.value.code, said.out) == (2, "")
    assert sorted(folder.rglob("*")) == before
    return line.removeprefix(f"pausefl: {folder}/")


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


HEADER = "client,time,seconds\n"
UNANSWERED = {"result": [{"rtt": 1.5}, {"x": "*"}], "prb_id": 1, "timestamp": 1}
SERIES = {"metric": {"instance": "a"}, "values": [[1, "0.1"], [2, "NaN"]]}
LATENCIES: dict[str, tuple[str | bytes, str, str]] = {
    "nothing": ("", "", "is empty"),
    "a header alone": (HEADER, "", "holds no latencies"),
    "one column": ("seconds\n0.1\n", "", 'line 1 has no column "client" (it has: seconds); say which: --client-column'),
    "a column of another name": (
        "client,time,ms\na,1,231\n",
        "",
        'line 1 has no column "seconds" (it has: client, time, ms); say which: --column NAME',
    ),
    "devices": ("device;seconds\na;0,1\n", "", "(it has: device, seconds); say which: --client-column NAME"),
    "a column twice": ("client,seconds,seconds\na,1,1\n", "", 'line 1 has 2 columns "seconds"'),
    "decimal commas": (
        f"{HEADER}a,1,0,1\n",
        "",
        "line 2 has 4 values and the header 3 names; decimals need a point, or semicolons between",
    ),
    "milliseconds": (
        f"{HEADER}a,1,231\na,2,244\nb,1,812\nb,2,901\n",
        "",
        'line 2 has "231" for seconds, and the median is 528, which looks like milliseconds; add --unit ms, or --unit',
    ),
    "a word": (f"{HEADER}a,1,fast\n", "", 'line 2 has "fast" for seconds: must be a number above 0'),
    "below 0": (f"{HEADER}a,1,0.1\na,2,-0.1\n", "", 'line 3 has "-0.1" for seconds'),
    "infinity": (f"{HEADER}a,1,0.1\na,2,inf\n", "", 'line 3 has "inf" for seconds: must be a number above 0; if its'),
    "a blank": (
        f"{HEADER}a,1,0.1\n\na,2,\n",
        "",
        "line 4 has nothing for seconds: must be a number above 0; if its probe was lost, add --lost '' and --timeout",
    ),
    "a short line": (f"{HEADER}a,1,0.1\na,2\n", "", "line 3 has nothing for seconds"),
    "a timeout": (f"{HEADER}a,1,timeout\n", "", "if its probe was lost, add --lost timeout and --timeout-s 5.0"),
    "a timeout of unknown length": (f"{HEADER}a,1,-\n", "--lost=-", "line 2 is a lost probe; say how long it was"),
    "a time that is none": (
        f"{HEADER}a,noon,0.1\n",
        "",
        'line 2 has "noon" for time: must be a number or an ISO 8601 date, such as 2026-03-01T10:00:00Z; rows in order',
    ),
    "nobody": (f"{HEADER},1,0.1\n", "", "line 2 does not say whose latency it is (column client)"),
    "an open quote": (f'{HEADER}"a,1,0.1\nb,2,0.2\n', "", "line 3 ends a text of several lines: its quotes are not"),
    "a long cell": (f"{HEADER}{'x' * 200_000},1,0.1\n", "", "cannot be read (line 2: field larger than field limit"),
    "Latin-1": ((HEADER + "Gerät,1,0.1\n").encode("latin-1"), "", "(line 2, column 4 is no UTF-8; save the file as"),
    "UTF-16 without a mark": (HEADER.encode("utf-16-le"), "", "is no text: line 1, column 2 is a zero byte; save it "),
    "a spreadsheet": (b"PK\x03\x04\x00\x00", "", "is no text: line 1, column 5 is a zero byte; save it as CSV in UTF"),
    "cut off": (gzip.compress(HEADER.encode() * 99)[:-9], "", "cannot be read (Compressed file ended before"),
    "damaged": (gzip.compress(HEADER.encode())[:-8] + bytes(8), "", "cannot be read (CRC check failed)"),
    "no such filter": (f"{HEADER}a,1,0.1\n", "--filter client=b", "no row passes --filter client=b (there is: a)"),
    "a filter of no column": (f"{HEADER}a,1,0.1\n", "--filter x=b", 'line 1 has no column "x" (it has: client, time'),
    "ping": ("PING a (1.2.3.4)", "", "line 1 is no header of a CSV file; try --format ping"),
    "ping -D": ("[1764201601.1] 64 bytes", "", "line 1 is no header of a CSV file; try --format ping"),
    "RIPE Atlas": (json.dumps([{"fw": 1}]), "", "line 1 is no header of a CSV file; try --format ripe-atlas"),
    "iperf3": ('{"start": {}}', "", "line 1 is no header of a CSV file; try --format iperf3"),
    "Prometheus": ('{"status": "success"}', "--format k6", "line 1 is no header of a CSV file; try --format promethe"),
    "FedScale": (pickle.dumps({1: {}}), "", "line 1 is no header of a CSV file; try --format fedscale"),
    "k6": ("metric_name,timestamp,metric_value,name\nvus,1,1,u\n", "", "say which: --column NAME; try --format k6"),
    "locust": ("Timestamp,Name,50%\n1,/a,N/A\n", "--column 50%", "say which: --client-column NAME; try --format locu"),
    "NDT": ("a_TestTime,a_MinRTT,client_IP\n1,2,3\n", "--column a_MinRTT", "NAME; try --format ndt"),
    "WonderNetwork": ('"source","avg","timestamp"\n1,2,3\n', "", "say which: --column NAME; try --format wondernetwo"),
    "CSV as Prometheus": (
        f"{HEADER}a,1,2\n",
        "--format prometheus",
        'is not of the format "prometheus" (line 1, column 1: Expecting value); try --format csv',
    ),
    "CSV as FedScale": (HEADER, "--format fedscale", '"fedscale" (is no pickle of plain values (pickle data was trun'),
    "CSV as NDT": ("client,ms\na,1\n", "--format ndt", 'line 1 has no column "a_MinRTT" (it has: client, ms); say wh'),
    "broken JSON": ('[{"prb_id": 1,\n  "result" 2}]', "--format ripe-atlas", "(line 2, column 12: Expecting ':' del"),
    "broken JSON of two": ("[]\n{", "--format ripe-atlas", "(line 2, column 2: Expecting property name"),
    "Prometheus as iperf3": ('{\n "status": "success"}', "--format iperf3", '(no "start" where one was due); try --f'),
    "an error of iperf3": ('{"start": {}, "error": "no route to host"}', "--format iperf3", "(it is an error: no rou"),
    "JSON too deep": ("[" * 200_000, "--format ripe-atlas", 'is not of the format "ripe-atlas" (its parts are of'),
    "a lost probe": (json.dumps([UNANSWERED]), "--format ripe-atlas", "result 2 is a lost probe; say how long it was"),
    "no number in JSON": (
        json.dumps({"status": "success", "data": {"result": [SERIES]}}),
        "--format prometheus",
        'value 2 has "NaN" for value: must be a number above 0; if its probe was lost, add --lost NaN and --timeout-s',
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LATENCIES)
def test_a_wrong_file_of_latencies(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, options, line = LATENCIES[name]
    file = written(tmp_path / "fleet.csv", content)
    said = complaint(capsys, tmp_path, "fit-latency", str(file), *options.split())
    assert said.startswith("fleet.csv: ")
    assert line in said


def test_a_timeout_is_a_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path / "fleet.csv", f"{HEADER}a,1,lost\n")
    said = complaint(capsys, tmp_path, "fit-latency", str(file), "--lost", "lost", "--timeout-s=-3")
    assert said == "pausefl: timeout_s = -3.0: must be above 0"


DELAYS = {
    "milliseconds": ("s\n231\n244\n", "", 'line 2 has "231" for s, and the median is 237.5, which looks like millise'),
    "a blank": ("s\n0.1\n\n''\n", "", "line 4 has \"''\" for s: must be a number of at least 0"),
    "a timeout": (
        "s\n1\n\ntimeout\n",
        "",
        'line 4 has "timeout" for s: must be a number of at least 0; if its probe was lost, add lost = ["timeout"] an',
    ),
    "below 0": ("s\n0.1\n-0.1\n", "", 'line 3 has "-0.1" for s: must be a number of at least 0'),
    "a short line": ("c,s\n1,0.1\n2\n", "", "line 3 has nothing for s: must be a number of at least 0"),
    "text over lines": ('s\n"0.1\n0.2"\n', "", r'line 3 has "0.1\n0.2" for s'),
    "another column": ("rtt\n0.1\n", "", 'line 1 has no column "s" (it has: rtt); say which: column = "NAME"'),
    "a column twice": ("s,s\n0.1,0.2\n", "", 'line 1 has 2 columns "s"'),
    "decimal commas": ("s\n0.1\n0,2\n", "", "line 3 has 2 values and the header 1 names; decimals need a point"),
    "no client": ("c,s\na,1\n,2\n", ', client_column = "c"', "line 3 does not say whose latency it is (column c)"),
    "another format": ('[{"fw": 1}]', "", 'line 1 is no header of a CSV file; try format = "ripe-atlas"'),
    "no values": ("s\n", "", "holds no values"),
    "nothing": ("", "", "is empty"),
}  # fmt: skip


@pytest.mark.parametrize("name", DELAYS)
def test_a_wrong_file_of_delays(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, more, line = DELAYS[name]
    file = written(tmp_path / "rtt.csv", content)
    delay = f'[latency]\ndelay = {{ kind = "empirical", file = "rtt.csv", column = "s"{more} }}\n'
    written(tmp_path / "mine.toml", EXPERIMENT + delay)
    said = complaint(capsys, tmp_path, "run", str(tmp_path / "mine.toml"), "--run-dir", str(tmp_path / "run"))
    assert said.startswith(f'mine.toml: latency.delay.file = "{file}": {line}')


TRACE = "client_id,round,on\n"
IN_SECONDS = ", round_s = 9.0"
TRACES: dict[str, tuple[str | bytes, str, str]] = {
    "nothing": ("", "", "is empty"),
    "another column": ("client,round,on\n", "", 'line 1 has no column "client_id" (it has: client, round, on)'),
    "times": ("client_id,time_s,on\n", "", 'line 1 has no column "round" (it has: client_id, time_s, on); add round_s'),
    "rounds": (TRACE, IN_SECONDS, 'line 1 has no column "time_s" (it has: client_id, round, on); leave round_s out'),
    "no number": (f"{TRACE}phones-000,x,1\n", "", 'line 2 has "x" for round: must be a number from 1'),
    "round 0": (f"{TRACE}a,2,1\na,0,1\n", "", 'line 3 has "0" for round: must be a number from 1'),
    "below 0": ("client_id,time_s,on\na,-1,0\n", IN_SECONDS, 'line 2 has "-1" for time_s: must be a number from 0'),
    "a word": (f"{TRACE}phones-000,3,yes\n", "", 'line 2 has "yes" for on: must be 1 or 0'),
    "a short line": (f"{TRACE}a,3\n", "", "line 2 has nothing for on: must be 1 or 0"),
    "nobody": ("round,on,client_id\n2,0\n", "", "line 2 has nothing for client_id: must be the id of a client"),
    "others": (f"{TRACE}other,3,1\n", "", "names other, which is no client of this experiment"),
    "Latin-1": ("client_id,round,on\nGerät,3,1\n".encode("latin-1"), "", "cannot be read (line 2, column 4 is no UTF"),
    "FedScale's": (pickle.dumps({1: {}}), "", "is a trace of FedScale, in seconds; add round_s, how many seconds one"),
    "a table of devices": (pickle.dumps({1: {}}), IN_SECONDS, "is no trace of FedScale (KeyError: 'active')"),
    "code": (pickle.dumps({1: Path()}), IN_SECONDS, "is no trace of FedScale (ValueError: is no pickle of plain valu"),
}  # fmt: skip


@pytest.mark.parametrize("name", TRACES)
def test_a_wrong_trace(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, more, line = TRACES[name]
    file = written(tmp_path / "trace", content)
    availability = f'availability = {{ kind = "trace", path = "trace"{more} }}'
    written(tmp_path / "mine.toml", EXPERIMENT.replace("count = 2", f"count = 2\n{availability}"))
    said = complaint(capsys, tmp_path, "run", str(tmp_path / "mine.toml"), "--run-dir", str(tmp_path / "run"))
    assert said.startswith(f'mine.toml: clients.groups.phones.availability.path = "{file}": {line}')


EXPERIMENTS: dict[str, tuple[str | bytes, str]] = {
    "a decimal comma": ("[latency]\ntime_scale = 0,5\n", "not valid TOML: .* \\(at line 2, column 15\\)"),
    "a key twice": ("[experiment]\nrounds = 2\nrounds = 3\n", r"not valid TOML: .* \(at line 3, column 11\)"),
    "JSON": ('{"experiment": {"rounds": 3}}', r"not valid TOML: .* \(at line 1, column 1\)"),
    "UTF-16": (EXPERIMENT.encode("utf-16"), r"cannot be read \(line 1, column 1 is no UTF-8; save the file as UTF-8\)"),
    "Latin-1": ("# a\n# Gerät\n".encode("latin-1"), r"cannot be read \(line 2, column 6 is no UTF-8; save the file as"),
    "Flower's": ('[build-system]\nrequires = ["hatchling"]\n', "build-system: unknown key; known keys: admission"),
    "a group's name": ('[clients.groups."Gerät 1.lab"]\ncount = 3\n', "clients.groups: 'Gerät 1.lab' is no name; let"),
    "a word for a truth": ("[privacy]\nenabled = 'no'\n", "privacy.enabled = 'no': must be true or false"),
    "capitals": ("[workload]\ndataset = 'MNIST'\n", 'workload.dataset = "MNIST": .*did you mean mnist'),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_wrong_experiment(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, line = EXPERIMENTS[name]
    written(tmp_path / "mine.toml", content)
    said = complaint(capsys, tmp_path, "run", str(tmp_path / "mine.toml"), "--run-dir", str(tmp_path / "run"))
    assert re.match(f"mine.toml: {line}", said), said
