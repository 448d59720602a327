"""`pausefl.replay` and `pausefl.fit_latency`: the library's functions on recorded logs and latencies."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pausefl.experiment.measured.reading import Reading
from pausefl.experiment.toml_source import Overrides
from pausefl.extras import needs
from pausefl.library import count_of, path_of
from pausefl_offline.latency_fit import LatencyFit, fit_laws
from pausefl_offline.replay_outputs import Replay, replayed, write_replay
from pausefl_proto.errors import ConfigError

if TYPE_CHECKING:
    from pausefl.experiment.measured.formats import Unit


@needs("server", "replay")
def replay(
    run_dir: str | Path,
    policy: str | None = None,
    overrides: Overrides = (),
    *,
    draws: int = 100,
    folder: str | Path | None = None,
) -> Replay:
    """Replay a run's log with its own policy, which must choose the same clients. If not, PauseflError names the round.

    With another `policy`, or `overrides` of [selection], it estimates that policy's choices and latencies from `draws`
    draws. Tables and a figure are written to `folder`, if it is given. Raises ConfigError if the log lacks data that
    the policy needs.
    """
    draws = count_of("draws", draws)
    if not (policy is None or isinstance(policy, str)):
        raise ConfigError(f"policy = {policy!r:.80}: must be the name of a policy")
    out = path_of("folder", folder) if folder is not None else None
    found = replayed(path_of("run_dir", run_dir), policy, overrides, draws)
    if out is not None:
        write_replay(found, out)
    return found


@needs("server", "latency")
def fit_latency(
    source: str | Path,
    *,
    format: str = "csv",
    column: str | None = None,
    unit: "Unit | None" = None,
    client_column: str | None = None,
    time_column: str | None = None,
    filter: Sequence[str] = (),
    lost: Sequence[str] = (),
    timeout_s: float | None = None,
) -> LatencyFit:
    """Fit a law to each client's latencies, from a run directory or a file of (client, time, seconds).

    The other arguments describe the file, like the keys of an "empirical" law. Without `unit`, values that look like
    milliseconds are refused. Raises ConfigError for any other source; it names the line.
    """
    try:
        reading = Reading(
            format=format,
            column=column,
            unit=unit,
            client_column=client_column,
            time_column=time_column,
            filter=tuple(filter),
            lost=tuple(lost),
            timeout_s=timeout_s,
        )
    except ValueError as error:
        raise ConfigError(str(error)) from None
    path_of("source", source)  # the file is read now, and errors name it as it was given
    return fit_laws(Path(source), reading)
