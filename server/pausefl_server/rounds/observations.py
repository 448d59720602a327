"""The log's rows of answers: the observation of an update in time, and the release of an update that was not used.

Pure functions.
"""

from dataclasses import replace

from pausefl_process.host_monitor import STOP_S
from pausefl_server.clients import ClientTable, only_labels
from pausefl_server.records import TIMING_TOLERANCE_S, LogEvent, Observation, Timing
from pausefl_server.rounds.messages import Refusal, Update
from pausefl_server.settings import ServerSettings

# μ̄ divides by latencies, and two readings of a clock may be equal: no latency is smaller than this.
_LEAST_LATENCY_S = 1e-6
# A client that reports stops in this many more exchanges than were measured is slow: its stops excuse it no longer.
_MOST_UNTAUGHT = 2
# No link between a client and this server is assumed to be faster than this: 10 Gbit/s.
_WIRE_BYTES_PER_S = 1.25e9


def observe(
    update: Update, bounded: Timing, table: ClientTable, settings: ServerSettings, now_s: float, *, is_overdue: bool
) -> Observation:
    """The observation of an update that came in time and is taken at `now_s`; its client has a row in `table`.

    `bounded` is the update's timing as far as it is believed (`bounded_timing`). `is_overdue`: the server read the
    update when more than twice the round's deadline had passed.
    """
    row, limits = table.row_of[update.client_id], settings.limits
    by_server = limits.of_server(update.server_host, is_overdue=is_overdue)
    by_client = limits.of_client(update.host, settings.signal, total_delays=settings.total_delays)
    is_excused = table.untaught[row] < table.measured[row] + _MOST_UNTAUGHT
    # After a restart of the server, a client sends what it had kept: this round trip is without the work.
    is_part = update.is_resent and not update.timing.reconnect_s and settings.signal == "round_trip"
    latency_s = bounded.signal_s(settings.signal, settings.time_scale)
    waited_s = update.timing.server_wait_s + now_s - update.arrived_s
    return Observation(
        client_id=update.client_id,
        timing=replace(update.timing, server_wait_s=waited_s),
        latency_s=max(latency_s, _LEAST_LATENCY_S),
        n_examples=int(table.n_examples[row]),
        participation=update.release.participation,
        epsilon=update.release.epsilon,
        epsilon_spent=max(update.release.epsilon_spent, float(table.epsilon_spent[row])),
        bytes_down=update.bytes_down,
        bytes_up=update.bytes_up,
        drawn_down_s=update.drawn_down_s,
        drawn_up_s=update.drawn_up_s,
        loss=update.loss if "loss" in settings.disclosed else None,
        statistics=only_labels(update.statistics) if "labels" in settings.disclosed else {},
        host=update.host,
        suspect=(*by_server, *by_client),
        teaches=not (is_part and is_excused) and limits.teaches([*by_server, *by_client] if is_excused else by_server),
    )


def with_stop_before(update: Update, usual_s: float) -> Update:
    """The update. Its host report includes a stop from before the job's arrival if the job waited for that stop's end.

    No measured part of the exchange contains that wait. It shows as a residual far above the client's usual one.
    """
    residual_s = update.timing.reconnect_s + update.timing.propagation_s
    if not update.still_before_s or residual_s - usual_s <= STOP_S:
        return update
    return replace(update, host=replace(update.host, stopped_s=update.host.stopped_s + update.still_before_s))


def bounded_timing(update: Update) -> Timing:
    """The update's timing, with device time cut to the time that communication leaves.

    The device time that a client states cannot be checked. But its communication took at least the upload, which the
    server timed itself, and at least the time that the bytes of both directions take at 10 Gbit/s.
    """
    timing = update.timing
    least_s = max(timing.upload_s, (update.bytes_down + update.bytes_up) / _WIRE_BYTES_PER_S)
    excess_s = least_s - timing.communication_s
    if excess_s <= TIMING_TOLERANCE_S or timing.device_s <= 0:
        return timing
    kept = max(0.0, 1 - excess_s / timing.device_s)
    return replace(timing, **{part: kept * getattr(timing, part) for part in ("queue_s", "train_s", "privatise_s")})


def reconciled(message: Update | Refusal) -> LogEvent:
    """The event of a release whose update was not used. It has left its client, so its ε is spent."""
    release = message.release
    return LogEvent(
        "reconciled",
        message.client_id,
        "spent on an update that was not used",
        epsilon_spent=release.epsilon_spent,
        released=release.participation,
    )
