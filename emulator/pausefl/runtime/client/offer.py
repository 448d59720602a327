"""The experiment of a client that was started without a file: the server's, but for what is the client's own."""

from collections.abc import Mapping
from typing import Any

from pausefl.config.client_records import tls_of
from pausefl.config.experiment import Experiment
from pausefl.config.loading import experiment_of
from pausefl.runtime.client.agreement import accepted
from pausefl.runtime.client.connecting import token_for
from pausefl.runtime.client.plan import connection_plan
from pausefl_client.transport import fetch_offer
from pausefl_process.waits import run_telling_waits


def fetch_experiment(address: str, client_id: str, own: Mapping[str, Any]) -> Experiment:
    """Ask the server at HOST:PORT; `own` is what the client decides, as tables of an experiment.

    ConfigError where the offer cannot be accepted, PauseflError where the server cannot be reached.
    """
    tables = {table: own[table] for table in ("tls", "admission", "clients", "server") if table in own}
    how = experiment_of({**tables, "selection": {"m": 1}})
    token = token_for(connection_plan(how), address, client_id)
    offer = run_telling_waits(fetch_offer(address, tls_of(how.tls, client_id), token, how.clients.connect_timeout_s))
    return accepted(offer, own)
