"""How clients reach their server, and what they show it of themselves."""

from functools import partial

from pausefl.config.client_records import tls_of
from pausefl.runtime.client.plan import ConnectionPlan
from pausefl_client.session_settings import Connect
from pausefl_client.transport import connect
from pausefl_process.tokens import read_token
from pausefl_proto.addresses import is_loopback
from pausefl_proto.errors import ConfigError


def connect_over_grpc(plan: ConnectionPlan, address: str, client_id: str) -> Connect:
    """What opens a client's stream to the server at HOST:PORT; ConfigError as `token_for`."""
    return partial(
        connect, address, tls_of(plan.tls, client_id), plan.dead_after_s, token_for(plan, address, client_id)
    )


def token_for(plan: ConnectionPlan, address: str, client_id: str) -> str:
    """The token that a client shows, empty where it needs none.

    ConfigError when it cannot be read, and where others on the network could read it.
    """
    if not plan.token:
        return ""
    host = address.rpartition(":")[0]
    if tls_of(plan.tls, client_id) is None and not (plan.is_insecure or is_loopback(host)):
        raise ConfigError(
            f'admission.token = "{plan.token}": whoever is between here and {address} could read it; set tls.ca, or say'
            " --insecure"
        )
    return read_token(plan.token.replace("{client_id}", client_id))
