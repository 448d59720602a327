"""File formats of published latencies: how to read each as a table, and the meaning of its columns.

To add a format to FORMATS, name its columns. If it is no CSV file, also give a function from the file's bytes to header
and rows.
"""

import bz2
import csv
import gzip
import io
import json
import lzma
import pickle
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pausefl_process.files import place_after, reason

Unit = Literal["s", "ms", "us"]
Row = tuple[int, list[str]]
"""The number of a line, or of a record if the file has no lines, and its cells."""
Table = tuple[list[str], list[Row]]
"""The header, and the rows that are not blank."""

_DECOMPRESS = {b"\x1f\x8b": gzip.decompress, b"BZh": bz2.decompress, b"\xfd7zXZ": lzma.decompress}
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_LOST = "lost"


@dataclass(frozen=True)
class Format:
    """How to read a format, and the defaults of options that the user does not set."""

    table: Callable[[bytes], Table]
    """Makes a table of a file's bytes. Raises ValueError, LookupError or TypeError for a file of another format."""
    column: str
    client: str
    time: str
    unit: Unit | None = None
    filter: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    """The texts that stand for a probe without an answer."""
    skipped: tuple[str, ...] = ()
    """The texts that say that there was no probe."""
    summed: str = ""
    """The name under which the format sums up all clients. It counts only if there is no other client."""
    counted: str = "line"


def bytes_of(file: Path) -> bytes:
    """The bytes of a file that may be compressed by gzip, bzip2 or xz. Raises ValueError if it cannot be read."""
    try:
        data = file.read_bytes()
        return next((unpack(data) for magic, unpack in _DECOMPRESS.items() if data.startswith(magic)), data)
    except (OSError, EOFError, ValueError, lzma.LZMAError, zlib.error) as error:
        raise ValueError(f"cannot be read ({reason(error)})") from error


def _text(data: bytes) -> str:
    """The text of a file in UTF-8 or UTF-16, as editors and spreadsheets write it."""
    try:
        text = data.decode("utf-16" if data.startswith(_UTF_16) else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"cannot be read ({reason(error)})") from error
    before, zero, _ = text.partition("\0")
    if zero:
        raise ValueError(f"is no text: {place_after(before)} is a zero byte; save it as CSV in UTF-8")
    return text


def csv_table(data: bytes) -> Table:
    """The header and rows of a CSV file, whose columns are separated by commas, semicolons or tabs."""
    text = _text(data)
    first = text.lstrip().partition("\n")[0]
    delimiter = next((each for each in "\t;" if each in first), ",")
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        rows = [(reader.line_num, cells) for row in reader if any(cells := [cell.strip() for cell in row])]
    except csv.Error as error:
        raise ValueError(f"cannot be read (line {reader.line_num}: {error})") from error
    if not rows:
        raise ValueError("is empty")
    (_, header), *rows = rows
    for line, row in rows:
        if len(row) > len(header):
            found = f"line {line} has {len(row)} values and the header {len(header)} names"
            raise ValueError(f"{found}; decimals need a point, or semicolons between the columns")
        if len(row) < len(header) and any("\n" in cell for cell in row):
            raise ValueError(f"line {line} ends a text of several lines: its quotes are not closed")
    if delimiter != ",":  # decimals may have commas
        rows = [(line, [re.sub(r"^(-?\d+),(\d+)$", r"\1.\2", cell) for cell in row]) for line, row in rows]
    return header, rows


def _ping(data: bytes) -> Table:
    """The replies of `ping`, best with -D. Probes that got no answer are lost. Duplicate replies do not count."""
    reply = re.compile(r"^(?:\[(\d+\.\d+)\] )?\d+ bytes from (\S+?):? .*?(?:icmp_)?seq=(\d+) .*?time=([\d.]+) ms")
    begun, host, when = 0, "", "0"
    runs: dict[tuple[int, str], dict[int, Row]] = {}  # by sequence number, which ascends
    for number, line in enumerate(_text(data).splitlines(), start=1):
        if found := re.match(r"PING ([^\s(]+)", line):
            begun, host, when = number, found[1], str(number)
        if found := reply.search(line):
            time, host, sequence, ms = found.groups()
            when = time or str(number)
        rows = runs.setdefault((begun, host), {})
        last = next(reversed(rows), 0)
        if found:
            place = int(sequence) + 2**16 * round((last - int(sequence)) / 2**16)  # sequence numbers have 16 bits
            rows |= {lost: (number, [host, when, _LOST]) for lost in range(last + 1, place)}
            if place not in rows or rows[place][1][-1] == _LOST:
                rows[place] = number, [host, when, ms]
        if sent := re.match(r"(\d+) packets transmitted", line):
            missing = int(sent[1]) - len(rows)
            rows |= {lost: (number, [host, when, _LOST]) for lost in range(last + 1, last + 1 + missing)}
    return ["host", "time", "ms"], [row for rows in runs.values() for row in rows.values()]


def _records(of: Callable[[Any], Iterator[list[Any]]], header: str, data: bytes) -> Table:
    """A table of the records that `of` finds in each document of a JSON or JSON Lines file."""
    text, at, found = _text(data).strip(), 0, list[list[str]]()
    while at < len(text):
        document, at = json.JSONDecoder().raw_decode(text, at)
        if isinstance(document, dict) and document.get("error"):
            raise ValueError(f"it is an error: {document['error']}")
        found += [[str(cell) for cell in record] for record in of(document)]
        at = following.start() if (following := re.compile(r"\S").search(text, at)) else len(text)
    return header.split(), list(enumerate(found, start=1))


def _ripe_atlas(document: Any) -> Iterator[list[Any]]:
    for measured in document if isinstance(document, list) else [document]:
        for probe in measured["result"]:
            if "dup" not in probe:
                yield [measured["prb_id"], measured["timestamp"], probe.get("rtt", _LOST)]


def _iperf3(document: Any) -> Iterator[list[Any]]:
    hosts = {each["socket"]: each["remote_host"] for each in document["start"]["connected"]}
    began = document["start"]["timestamp"]["timesecs"]
    for interval in document["intervals"]:
        for stream in interval["streams"]:
            yield [hosts[stream["socket"]], began + stream["start"], stream["rtt"]]


def _prometheus(document: Any) -> Iterator[list[Any]]:
    for series in document["data"]["result"]:
        labels = {name: value for name, value in series["metric"].items() if name != "__name__"}
        who = labels.get("instance") or ",".join(labels.values())
        yield from ([who, time, value] for time, value in series.get("values") or [series["value"]])


class _Plain(pickle.Unpickler):
    """Unpickles only containers, texts and numbers, as other pickles can run any code."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"holds {module}.{name}, and may hold dictionaries, lists and numbers alone")


def unpickled(data: bytes) -> Any:
    """The content of a pickle of containers, texts and numbers. Raises ValueError for any other pickle."""
    try:
        return _Plain(io.BytesIO(data)).load()
    except (pickle.UnpicklingError, EOFError, IndexError, KeyError, AttributeError) as error:
        raise ValueError(f"is no pickle of plain values ({error})") from error


def _fedscale(data: bytes) -> Table:
    """FedScale's table of devices, with milliseconds to compute a sample. Its `communication` is a rate, not a time."""
    rows = [[str(client), str(device["computation"])] for client, device in unpickled(data).items()]
    return ["client", "computation"], list(enumerate(rows, start=1))


FORMATS = {
    "csv": Format(csv_table, "seconds", "client", "time"),
    "ping": Format(_ping, "ms", "host", "time", "ms", lost=(_LOST,)),
    "ripe-atlas": Format(
        partial(_records, _ripe_atlas, "probe time ms"), "ms", "probe", "time", "ms", lost=(_LOST,), counted="result"
    ),
    "iperf3": Format(partial(_records, _iperf3, "host time us"), "us", "host", "time", "us", counted="interval"),
    "prometheus": Format(
        partial(_records, _prometheus, "series time value"), "value", "series", "time", "s", counted="value"
    ),
    "k6": Format(
        csv_table, "metric_value", "name", "timestamp", "ms", ("metric_name=http_req_duration",), ("0.000000",)
    ),
    "locust": Format(csv_table, "50%", "Name", "Timestamp", "ms", skipped=("N/A",), summed="Aggregated"),
    "ndt": Format(csv_table, "a_MinRTT", "client_IP", "a_TestTime", "ms"),
    "wondernetwork": Format(csv_table, "avg", "source", "timestamp", "ms"),
    "fedscale": Format(_fedscale, "computation", "client", "client", "ms", counted="device"),
}
