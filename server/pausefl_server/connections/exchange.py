"""A job under way with one client, and what the client reports of it: checked, kept short, and joined with own timings.

WireError for impossible values.
"""

from dataclasses import dataclass, fields, replace
from operator import attrgetter

from pausefl_process.host_monitor import HostReport
from pausefl_proto.budget import Release
from pausefl_proto.errors import WireError
from pausefl_proto.foreign_text import shown
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_proto.wire import MAX_STATISTICS, Assembler, Vector
from pausefl_server.clients import GREATEST_STATED
from pausefl_server.records import TIMING_TOLERANCE_S, Timing
from pausefl_server.rounds.messages import Dispatch
from pausefl_server.settings import ServerSettings

LONGEST_TEXT = 200
"""How many characters are kept of a text that a client wrote."""

# No exchange takes longer than this, some 11 days.
_LONGEST_S = 1e6
_LONGEST_NAME = 64
# A client's parts may also exceed the round trip by this share of their sum: clocks drift, and chrony slews them by up
# to a twelfth. Device time is bounded before a policy sees it.
_TIMING_TOLERANCE_SHARE = 0.1
# The parts that a client times.
_REPORTED = tuple(f.name for f in fields(Timing) if f.name in pb.Timing.DESCRIPTOR.fields_by_name)
_host_values = attrgetter(*(f.name for f in fields(HostReport)))


@dataclass(slots=True)
class Exchange:
    """A job under way: from the first model frame handed over to the last update frame received."""

    job: Dispatch
    started_s: float
    """When this stream was handed the job."""
    bytes_down: int
    bytes_up: int = 0
    first_frame_s: float = 0.0
    result: pb.Result | None = None
    frames: Assembler | None = None
    times_asked: int = 1

    @property
    def first_s(self) -> float:
        """When the client was first handed the job, perhaps on an earlier stream."""
        return self.started_s if self.job.handed_over_s is None else self.job.handed_over_s

    def timing(self, reported: pb.Timing, arrived_s: float, host: HostReport) -> Timing:
        """Join the durations of both clocks; WireError if the client's parts do not fit within the round trip.

        WireError for a duration or a drawn delay that is not in [0, 10⁶] seconds, too.

        The server's clock stands still while its machine sleeps, but the clients' clocks do not. The round trip is then
        extended to the sum of its parts, by at most the time that the server slept.
        """
        _check_range(reported, _LONGEST_S)
        timing = Timing(
            round_trip_s=arrived_s - self.first_s,
            reconnect_s=self.started_s - self.first_s,
            upload_s=arrived_s - self.first_frame_s,
            framing_s=self.job.framing_s,
            server_wait_s=self.first_s - self.job.ready_s,
            **{part: getattr(reported, part) for part in _REPORTED},
        )
        if timing.propagation_s < 0 < host.suspended_s:
            slept_s = min(-timing.propagation_s, host.suspended_s)
            timing = replace(timing, round_trip_s=timing.round_trip_s + slept_s)
        stated_s = timing.download_s + timing.injected_down_s + timing.device_s + timing.injected_up_s
        if timing.propagation_s < -(TIMING_TOLERANCE_S + _TIMING_TOLERANCE_SHARE * stated_s):
            raise WireError(f"reports parts that take {-timing.propagation_s:.4g} s longer than the whole exchange")
        return timing


def update_of(frames: Assembler, epsilon: float, settings: ServerSettings) -> Vector:
    """The update; WireError if clipping and noise at `epsilon` > 0 cannot have made it, or a variance is < 0."""
    vector = frames.finish(check_finite=True)
    d, bound = settings.manifest.charged.size, settings.privacy.norm_bound if settings.privacy else None
    if bound is not None and epsilon > 0:
        bound.check(vector[:d], epsilon, settings.encoding)
    for name, values in settings.manifest.statistics.split(vector[d:]).items():
        if name.endswith("running_var") and values.min(initial=0.0) < 0:
            raise WireError(f"has a negative variance in {name}")
    return vector


def release_of(result: pb.Result) -> Release:
    """The release that the client says it made, unchecked: the coordinator compares it with the schedule."""
    return Release(result.release.participation, result.release.epsilon, result.release.epsilon_spent)


def loss_of(result: pb.Result) -> float | None:
    """The training loss that the client discloses; None if it discloses none, or if it is NaN, infinite or too great.

    Such a loss is not an error: if training diverged, the clipped and noised update may still be sound.
    """
    return result.loss if result.HasField("loss") and abs(result.loss) <= GREATEST_STATED else None


def statistics_of(result: pb.Result) -> dict[str, float]:
    """The statistics of its data that the client discloses, by name, sorted by name.

    Their order in a message differs from process to process; sorted, a repeated run gives the same log.
    WireError for more than 1024 of them, a name of more than 64 characters, or a value that is NaN or too great.
    """
    if len(result.statistics) > MAX_STATISTICS or any(len(name) > _LONGEST_NAME for name in result.statistics):
        raise WireError(f"reports statistics of more than {MAX_STATISTICS} labels, or of too long names")
    for name, value in result.statistics.items():
        if not abs(value) <= GREATEST_STATED:  # NaN neither
            raise WireError(f"reports {shown(name)} = {value}: must be a number, at most {GREATEST_STATED:g}")
    return dict(sorted(result.statistics.items()))


def host_of(result: pb.Result, timing: Timing) -> HostReport:
    """How well the client's host kept time; WireError for a number that is negative, NaN or too great.

    A client does not see the time on a real network: its share of computing is at most that of the round trip.
    """
    _check_range(result.host, GREATEST_STATED)
    host, share = HostReport(*_host_values(result.host)), timing.device_s / max(timing.round_trip_s, 1e-9)
    return replace(host, compute_share=min(host.compute_share, share))


def _check_range(message: pb.Timing | pb.Host, most: float) -> None:
    """Raise WireError unless all numbers are from 0 to `most`, so that their sums are finite and fit in reports."""
    for field, value in message.ListFields():
        if not 0 <= value <= most:  # NaN neither
            raise WireError(f"reports {field.name} = {value}: must be a number from 0 to {most:g}")
