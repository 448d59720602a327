"""A server's settings in tests: three short rounds, everything patient, nothing private unless said."""

from typing import Any

from pausefl_proto.wire import Manifest, TensorSpec
from pausefl_server.settings import ServerSettings


def server_settings(size: int, **changes: Any) -> ServerSettings:
    """For a model of one tensor of `size` values."""
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
    }
    return ServerSettings(**settings | changes)
