"""A job under way with one client, and its timing, which joins durations from two clocks."""

from dataclasses import dataclass, fields, replace

from pausefl_process.host_monitor import HostReport
from pausefl_proto.errors import WireError
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_proto.wire import Assembler
from pausefl_server.records import TIMING_TOLERANCE_S, Timing
from pausefl_server.rounds.messages import Dispatch

# A client's parts may also exceed the round trip by this share of their sum: clocks drift, and are slewed, by some
# hundred millionths. Device time is bounded before a policy sees it.
_TIMING_TOLERANCE_SHARE = 1e-3
# The parts that a client times.
_REPORTED = tuple(f.name for f in fields(Timing) if f.name in pb.Timing.DESCRIPTOR.fields_by_name)


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

        The server's clock stands still while its machine sleeps, but the clients' clocks do not. The round trip is then
        extended to the sum of its parts, by at most the time that the server slept.
        """
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
