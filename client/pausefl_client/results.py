"""The result that a client sends for a job that it has answered."""

from pausefl_client.jobs import Work
from pausefl_process.host_monitor import HostReport
from pausefl_proto.v1 import federation_pb2 as pb


def result_of(job: pb.Job, work: Work, timing: pb.Timing, update: pb.Vector, host: HostReport) -> pb.Result:
    """The result of a job that came to an update, with what its release cost and, where disclosed, its loss."""
    result = pb.Result(round=job.round, attempt=job.attempt, status=pb.STATUS_OK, timing=timing, update=update)
    reported = result.host
    reported.loop_lag_s, reported.timer_overshoot_s = host.loop_lag_s, host.timer_overshoot_s
    reported.steal_share, reported.compute_share = host.steal_share, host.compute_share
    if (charge := work.released.charge) is not None:
        result.release.participation = charge.participation
        result.release.epsilon = charge.epsilon
        result.release.epsilon_spent = charge.epsilon_spent
    if work.loss is not None:
        result.loss = work.loss
    return result
