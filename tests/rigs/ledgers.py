"""Ledgers of clients that a test makes up, closed when the test is over."""

from contextlib import ExitStack
from pathlib import Path

from pausefl_client.privacy.ledger import Ledger
from pausefl_proto.budget import Budget

open_ledgers = ExitStack()


def open_ledger(folder: Path, client_id: str, budget: Budget) -> Ledger:
    """The client's ledger in `folder`; who wants to open it again must close it before."""
    ledger = Ledger(folder / f"{client_id}.db", budget, unit="coordinate", client_id=client_id, data="test")
    open_ledgers.callback(ledger.close)
    return ledger
