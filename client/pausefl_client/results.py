"""What a client sends for a job: the result of one that was answered, and the kind of error of one that failed."""

from pausefl_client.jobs import Work
from pausefl_process.host_monitor import HostReport
from pausefl_proto.errors import BudgetError, LedgerError, WrittenOff
from pausefl_proto.v1 import federation_pb2 as pb


def result_of(job: pb.Job, work: Work, timing: pb.Timing, update: pb.Vector, host: HostReport) -> pb.Result:
    """The result of a job that came to an update, with what its release cost and, where disclosed, its loss."""
    result = pb.Result(round=job.round, attempt=job.attempt, status=pb.STATUS_OK, timing=timing, update=update)
    result.host.loop_lag_s = host.loop_lag_s
    result.host.timer_overshoot_s = host.timer_overshoot_s
    result.host.steal_share = host.steal_share
    result.host.compute_share = host.compute_share
    if (charge := work.released.charge) is not None:
        result.release.participation = charge.participation
        result.release.epsilon = charge.epsilon
        result.release.epsilon_spent = charge.epsilon_spent
    if work.loss is not None:
        result.loss = work.loss
    return result


def kind_of(error: BaseException) -> str:
    """What kind of error it is, in words that do not depend on any data."""
    match error:
        case BudgetError():
            return "its privacy budget allows no further release"
        case WrittenOff():
            return "it was answered before, and its bytes are gone: written off"
        case LedgerError():
            return "its ledger takes no release; its own log says why"
    return "it failed at the job; its own log says why"
