"""The privacy of a client of an experiment: its mechanism, its ledger in the place where that lies, and its noise."""

import re
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from pausefl.runtime.client.plan import PrivacyPlan
from pausefl_client.data.holdings import Holding
from pausefl_client.privacy.ledger import Ledger, ReleaseKey
from pausefl_client.privacy.mechanism import ExactLaplace, LaplaceSource, NumpyLaplace, entropy_rng
from pausefl_client.privacy.release import ReleasePrivacy
from pausefl_client.training.trainer import Trainer
from pausefl_process.files import held_folder, prepare_folder
from pausefl_proto.draws import generator
from pausefl_proto.errors import ConfigError, LedgerError

# <dealing>-<examples>.db, see `Holding`.
_SHARED_NAME = re.compile(r"([0-9a-f]{16})-([0-9a-f]{32})")


def open_privacies(
    plan: PrivacyPlan | None, trainers: Mapping[str, Trainer], ledgers: Path, closing: ExitStack
) -> dict[str, ReleasePrivacy | None]:
    """The privacy of each of a process's clients, None in a run without; `closing` closes their ledgers.

    Ledgers lie in `ledgers`, one for each client id; in `privacy.ledger_dir`, one for each holding of examples.
    ConfigError where a ledger is not to be had, or is not the one of these examples.
    """
    if plan is None:
        return dict.fromkeys(trainers)
    if plan.noise == "opendp":
        ExactLaplace()  # here, where its absence is bad input, not at the first release

    def opened(paths: Mapping[str, Path]) -> dict[str, ReleasePrivacy | None]:
        return {c: _open(plan, c, trainers[c], paths[c], closing) for c in trainers}

    if not plan.ledger_dir:
        prepare_folder(ledgers, f"ledgers {ledgers}")
        return opened({client_id: ledgers / f"{client_id}.db" for client_id in trainers})
    folder = Path(plan.ledger_dir)
    prepare_folder(folder, f'privacy.ledger_dir = "{folder}"')
    # No other process begins ledgers there between a look at those it holds and the ones begun for it.
    with held_folder(folder):
        return opened(_shared_ledgers(folder, {c: trainer.holding for c, trainer in trainers.items()}))


def noise_for(plan: PrivacyPlan, client_id: str, key: ReleaseKey) -> LaplaceSource:
    """A fresh source for every release, on the device that trains.

    Only a run that is marked "not private" takes it from the seed.
    """
    if plan.noise == "reproducible":
        return NumpyLaplace(generator(plan.seed, "noise", client_id, key.round, key.attempt))
    if plan.noise == "opendp":
        return ExactLaplace()
    return _device_noise(plan.device) or NumpyLaplace(entropy_rng())


def _open(plan: PrivacyPlan, client_id: str, trainer: Trainer, path: Path, closing: ExitStack) -> ReleasePrivacy:
    try:
        ledger = Ledger(path, plan.budget, plan.life, **_ledger_identity(plan, client_id, trainer))
    except LedgerError as error:  # before anything was sent it is bad input
        raise ConfigError(str(error)) from error
    closing.callback(ledger.close)
    return ReleasePrivacy(plan.mechanism, ledger, partial(noise_for, plan, client_id))


def _ledger_identity(plan: PrivacyPlan, client_id: str, trainer: Trainer) -> dict[str, str]:
    """The ledger's owner, and what has to be the same for all of its releases if their ε are to add up."""
    # Both samplers spend alike; noise from the seed is not private, whatever is drawn after it.
    noise = "reproducible" if plan.noise == "reproducible" else "fresh"
    unit = plan.mechanism.unit
    identity = {"unit": unit, "noise": noise}
    if plan.life is None:  # a life's budget holds whatever a run has its client train on
        identity["examples"] = trainer.holding.examples
    if not plan.ledger_dir:  # there, examples keep their ledger under another client id
        identity["client_id"] = client_id
    # The ε of an upload is d times a coordinate's.
    return identity | {"model_size": str(trainer.manifest.charged.size)} if unit == "coordinate" else identity


def _shared_ledgers(folder: Path, holdings: Mapping[str, Holding]) -> dict[str, Path]:
    """Each client's ledger in a folder that outlives runs: the one of its examples, whatever the client is called.

    ConfigError where examples without a ledger may be among those of others, and where two clients hold the same ones.
    """
    key = f'privacy.ledger_dir = "{folder}"'
    by_examples, dealings = dict[str, Path](), set[str]()
    for path in sorted(folder.glob("*.db")):
        named = _SHARED_NAME.fullmatch(path.stem)
        if named is None:
            raise ConfigError(
                f"{key}: holds {path.name}, which is not named after the examples it counts for: take another folder,"
                " and count what its ledgers have spent as spent"
            )
        dealings.add(named[1])
        by_examples[named[2]] = path
    clients: dict[str, str] = {}
    for client_id, holding in holdings.items():
        if (other := clients.setdefault(holding.examples, client_id)) != client_id:
            raise ConfigError(f"{key}: {other} and {client_id} hold the same examples, and would both spend one budget")
        if holding.examples not in by_examples and dealings - {holding.dealing}:
            raise ConfigError(
                f"{key}: its ledgers count for examples that were dealt out otherwise (by another seed, data set,"
                " partition or number of clients or examples), and some may be"
                f" {client_id}'s: change that back, or take another folder, whose budgets add to these"
            )
    return {c: by_examples.get(h.examples, folder / f"{h.dealing}-{h.examples}.db") for c, h in holdings.items()}


def _device_noise(name: str | None) -> LaplaceSource | None:
    """The source on the device that trains; None where that is the processor, which numpy serves faster."""
    if name is None:
        return None
    from pausefl_client.training.torch_trainer import resolve_device

    device = resolve_device(name)
    if device.type == "cpu":
        return None
    from pausefl_client.privacy.device_noise import DeviceLaplace, secret_generator

    return DeviceLaplace(secret_generator(device))
