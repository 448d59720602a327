"""Clients that outlive runs: they wait for a run at one address, take part in it to its end, and wait for the next."""

import itertools
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pausefl.experiment.experiment import Experiment
from pausefl.runtime.client.connecting import token_for
from pausefl.runtime.client.host_page import host_page
from pausefl.runtime.client.plan import ClientPlan, client_plan, connection_plan
from pausefl.runtime.client.process import LONGEST_AFTER_REFUSAL_S, play_over_grpc
from pausefl_client.privacy.ledger import Life, verified_spend
from pausefl_client.reconnection import Reconnection
from pausefl_client.transport import fetch_offer
from pausefl_process.events import Report, SpentInAllRuns
from pausefl_process.plugins import errors_of_own_code, with_place
from pausefl_proto.errors import ConfigError, LedgerError, PauseflError, first_error
from pausefl_proto.foreign_text import shown

log = logging.getLogger("pausefl.client")


@dataclass(frozen=True)
class StayingClients:
    """The clients of one process that outlive runs, and the settings that they decide themselves."""

    address: str
    """HOST:PORT, looked up again for every connection: the server may move."""
    client_ids: Sequence[str]
    ledgers: Path
    """The folder of the ledgers. Each client has one ledger for all of its runs."""
    own: Experiment
    """Their own settings for the connection to the server, and for their metrics."""
    experiment_of: Callable[[str], Experiment]
    """Returns the experiment to take part in, from the server's offer. ConfigError if they cannot accept the offer."""
    epsilon_lifetime: float = math.inf


async def stay(clients: StayingClients, report: Report) -> None:
    """Take part in one run after another, for ever. An error is logged once, and the clients try again.

    ConfigError for errors at the start: an unreadable token, a port that is taken.
    """
    first, own, address = clients.client_ids[0], clients.own, clients.address
    for client_id in clients.client_ids:
        token_for(connection_plan(own), address, client_id)
    way, refusals, told = Reconnection(first, math.inf), Reconnection(first, math.inf), ""
    spent, refused = dict[str, SpentInAllRuns](), dict[str, str]()
    certificates = [own.tls.in_use(client_id) for client_id in clients.client_ids]
    with host_page(own.metrics, report, certificates) as page:
        for asks in itertools.cycle(clients.client_ids):  # in turn: the server may have locked some of them out
            if page is not None:
                page.waits_for = f"waits for a run at {address}"
            try:
                token = token_for(connection_plan(own), address, asks)  # read again: it may have been renewed
                offer = await fetch_offer(address, own.tls.in_use(asks), token, way)
                plan = in_run(client_plan(clients.experiment_of(offer.experiment)), shown(offer.run_id), clients)
                with first_error(), errors_of_own_code(), _telling_what_is_spent(clients, plan, report, spent):
                    await play_over_grpc(plan, clients.client_ids, address, clients.ledgers, page, refused=refused)
                told = ""
                refused.clear()
                refusals.connected()
            except Exception as error:  # an offer may also make a library fail, such as torch
                if (said := shown(str(error) if isinstance(error, PauseflError) else with_place(error))) != told:
                    told = said
                    log.warning("%s: takes no part: %s; it waits for another run", first, said)
            await refusals.wait(LONGEST_AFTER_REFUSAL_S)


def in_run(plan: ClientPlan, run_id: str, clients: StayingClients) -> ClientPlan:
    """`plan` for the run `run_id`, which its clients outlive. ConfigError for settings that cannot go with --stay."""
    privacy, lifetime = plan.privacy, clients.epsilon_lifetime
    if privacy is not None and privacy.ledger_dir:
        raise ConfigError(
            f'privacy.ledger_dir = "{privacy.ledger_dir}": goes without --stay, whose ledgers outlive runs anyway'
        )
    if privacy is None and math.isfinite(lifetime):
        raise ConfigError(f"--epsilon-lifetime {lifetime:g}: goes with privacy.enabled = true")
    if privacy is not None:
        privacy = replace(privacy, life=Life(run_id, lifetime))
    return replace(plan, privacy=privacy, run_id=run_id, give_up_after_s=math.inf)


@contextmanager
def _telling_what_is_spent(
    clients: StayingClients, plan: ClientPlan, report: Report, told: dict[str, SpentInAllRuns]
) -> Iterator[None]:
    """After the block, also after an error, report what each client has spent in all runs, unless `told` last."""
    try:
        yield
    finally:
        for client_id in clients.client_ids if plan.privacy is not None else ():
            with suppress(LedgerError, OSError):  # the run has already reported the reason
                released, epsilon = verified_spend(clients.ledgers / f"{client_id}.db")
                bound = clients.epsilon_lifetime if math.isfinite(clients.epsilon_lifetime) else None
                of = "" if bound is None else f" of --epsilon-lifetime {bound:g}"
                said = "%s: %s is over for it; epsilon of all runs: %g%s, %d releases (unit %s)"
                unit = plan.privacy.mechanism.unit if plan.privacy else "vector"
                event = SpentInAllRuns(client_id, plan.run_id, released, epsilon, bound, unit)
                if told.get(client_id) != event:
                    told[client_id] = event
                    log.info(said, client_id, plan.run_id, epsilon, of, released, unit, extra={"client_id": client_id})
                    report(event)
