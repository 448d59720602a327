"""A client's update and the values that it reports beside it, checked and kept short; WireError for impossible ones."""

from dataclasses import fields
from operator import attrgetter

from pausefl_process.host_monitor import HostReport
from pausefl_proto.budget import Release
from pausefl_proto.errors import WireError
from pausefl_proto.foreign_text import shown
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_proto.wire import MAX_STATISTICS, Assembler, Vector
from pausefl_server.clients import GREATEST_STATED
from pausefl_server.settings import ServerSettings

LONGEST_TEXT = 200
"""How many characters are kept of a text that a client wrote."""

# No exchange takes longer than this, some 11 days.
_LONGEST_S = 1e6
_LONGEST_NAME = 64
_host_values = attrgetter(*(f.name for f in fields(HostReport)))


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
    release = result.release
    return Release(release.participation, release.epsilon, release.epsilon_spent)


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


def durations_of(result: pb.Result) -> pb.Timing:
    """How long the job's parts took and what delays were drawn, in seconds; WireError for one not in [0, 10⁶]."""
    _check_range(result.timing, _LONGEST_S)
    return result.timing


def host_of(result: pb.Result) -> HostReport:
    """How well the client's host kept time; WireError for a number that is negative, NaN or too great."""
    _check_range(result.host, GREATEST_STATED)
    return HostReport(*_host_values(result.host))


def _check_range(message: pb.Timing | pb.Host, most: float) -> None:
    """Raise WireError unless all numbers are from 0 to `most`, so that their sums are finite and fit in reports."""
    for field, value in message.ListFields():
        if not 0 <= value <= most:  # NaN neither
            raise WireError(f"reports {field.name} = {value}: must be a number from 0 to {most:g}")
