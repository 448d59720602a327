"""A server's settings for tests: three rounds, long timeouts, and no privacy unless changed."""

from typing import Any

from pausefl_proto.encoding import FLOAT32
from pausefl_proto.wire import Manifest, TensorSpec
from pausefl_server.host_limits import HostLimits
from pausefl_server.model.aggregation import Aggregation
from pausefl_server.model.optimizers import ServerOptimizer
from pausefl_server.model.staleness import Asynchronous
from pausefl_server.settings import RunInfo, ServerSettings


def server_settings(size: int, **changes: Any) -> ServerSettings:
    """Settings for a model of one tensor of `size` values."""
    settings: dict[str, Any] = {
        "run_id": "test",
        "seed": 1,
        "rounds": 3,
        "minimum_clients": 2,
        "manifest": Manifest((TensorSpec("w", (size,)),)),
        "privacy": None,
        "signal": "round_trip",
        "time_scale": 1.0,
        "tau_min_s": 0.05,
        "connect_timeout_s": 20.0,
        "round_timeout_s": 20.0,
        "rejoin_timeout_s": 20.0,
        "evaluation_every": 0,
        "quorum": 1.0,
        "spare": 0,
        "keeps_late_updates": False,
        "checkpoint_every": 25,
        "rounds_without_update_max": 3,
        "rest_rounds_max": 64,
        "examples_max": None,
        "disclosed": frozenset(),
        "pings_per_s": 0.0,
        "limits": HostLimits(),
        "aggregation": Aggregation(),
        "optimizer": ServerOptimizer(),
        "is_asynchronous": False,
        "asynchronous": Asynchronous(),
        "expected": None,
        "clients": None,
        "total_delays": False,
        "info": RunInfo(run="", policy="", dataset="", model=""),
        "encoding": FLOAT32,
        "agreement": None,
    }
    return ServerSettings(**settings | changes)
