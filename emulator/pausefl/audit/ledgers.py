"""A finished run's ledgers, held against what its server knows."""

from pathlib import Path

from pausefl.results.reading import read_run
from pausefl_client.privacy.ledger import verified_spend
from pausefl_proto.errors import PauseflError


def check_ledgers(run_dir: Path) -> str:
    """That every ledger in the run directory holds together and counts no less than the server knows; sentences.

    PauseflError where one does not, or is missing beside others. Where there is none, clients may keep them elsewhere.
    """
    clients = read_run(run_dir).clients
    ledgers, ahead, missing = 0, [], []
    for client_id, released in zip(clients["client_id"], clients["released"], strict=True):
        path = run_dir / "ledgers" / f"{client_id}.db"
        if path.exists():
            charged, spent = verified_spend(path)
            ledgers += 1
            if charged < released:
                raise PauseflError(f"{path}: counts {charged} releases (epsilon {spent:g}), the server {released}")
            if charged > released:
                ahead.append(f"{client_id} counts {charged} releases (epsilon {spent:.4g}), the server {released}")
        elif released:
            missing.append(f"{client_id} ({released} releases)")
    if not ledgers:
        return "No ledger lies in this run's directory: its clients keep them elsewhere."
    if missing:
        raise PauseflError(
            f"{run_dir / 'ledgers'}: ledgers of clients that were charged are missing, others are there:"
            f" {', '.join(missing)}"
        )
    found = f"{ledgers} ledgers hold together and count no less than the server knows."
    if ahead:
        found += f" {len(ahead)} count more, of releases the server never heard of: {'; '.join(ahead)}."
    return found
