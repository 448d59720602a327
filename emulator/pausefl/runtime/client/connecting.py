"""How clients connect to their server, which token they show, and how they fetch the experiment without CONFIG."""

from collections.abc import Mapping
from typing import Any

from pausefl.experiment.experiment import Experiment, experiment_of
from pausefl.runtime.client.agreement import accepted
from pausefl.runtime.client.plan import ConnectionPlan, connection_plan
from pausefl.runtime.processes.waits import run_telling_waits
from pausefl_client.reconnection import Reconnection
from pausefl_client.session_settings import Connect
from pausefl_client.transport import connect, fetch_offer
from pausefl_process.tokens import read_token
from pausefl_proto.addresses import is_loopback
from pausefl_proto.errors import ConfigError


def connect_over_grpc(plan: ConnectionPlan, address: str, client_id: str) -> Connect:
    """A function that opens a client's stream to HOST:PORT, with its token of then. Both raise as `token_for` does."""
    tls = plan.tls.in_use(client_id)
    token_for(plan, address, client_id)
    return lambda: connect(address, tls, plan.dead_after_s, token_for(plan, address, client_id))


def token_for(plan: ConnectionPlan, address: str, client_id: str) -> str:
    """The token that a client shows; empty if it needs none.

    ConfigError if its file cannot be read, or if others on the network could read the token.
    """
    if not plan.token:
        return ""
    host = address.rpartition(":")[0]
    if plan.tls.in_use(client_id) is None and not (plan.is_insecure or is_loopback(host)):
        raise ConfigError(
            f'admission.token = "{plan.token}": whoever is between here and {address} could read it; set tls.ca, or say'
            " --insecure"
        )
    return read_token(plan.token.replace("{client_id}", client_id))


def fetch_experiment(address: str, client_id: str, own: Mapping[str, Any]) -> Experiment:
    """Fetch the experiment from the server at HOST:PORT. `own`, the client's own tables of it, takes precedence.

    ConfigError if the offer cannot be accepted, PauseflError if the server cannot be reached.
    """
    how = way_of(own)
    token = token_for(connection_plan(how), address, client_id)
    reconnection = Reconnection(client_id, how.clients.connect_timeout_s)
    offer = run_telling_waits(fetch_offer(address, how.tls.in_use(client_id), token, reconnection))
    return accepted(offer.experiment, own)


def way_of(own: Mapping[str, Any]) -> Experiment:
    """An experiment with a client's own settings for its connection and its metrics; ConfigError if they are wrong."""
    tables = {table: own[table] for table in ("tls", "admission", "clients", "server", "metrics") if table in own}
    return experiment_of({**tables, "selection": {"m": 1}})
