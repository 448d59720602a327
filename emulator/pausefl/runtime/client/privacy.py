"""Sets up the privacy of a client of an experiment: its mechanism, its ledger file, and its noise."""

import re
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from pausefl.experiment.tables import Workload
from pausefl.runtime.client.plan import ClientPlan, PrivacyPlan, TrainingPlan
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
    plan: ClientPlan, trainers: Mapping[str, Trainer], ledgers: Path, closing: ExitStack
) -> dict[str, ReleasePrivacy | None]:
    """The privacy of each client of a process; None in a run without privacy. `closing` closes the ledgers.

    Ledgers lie in `ledgers`, one for each client id, or in `privacy.ledger_dir`, one for each holding of examples.
    ConfigError if a ledger cannot be opened, or belongs to other examples.
    """
    privacy = plan.privacy
    if privacy is None:
        return dict.fromkeys(trainers)
    if privacy.noise == "opendp":
        ExactLaplace()  # if OpenDP is missing, fail here as bad input, not at the first release

    def opened(paths: Mapping[str, Path]) -> dict[str, ReleasePrivacy | None]:
        return {c: _open(privacy, plan.training, c, trainers[c], paths[c], closing) for c in trainers}

    if not privacy.ledger_dir:
        prepare_folder(ledgers, f"ledgers {ledgers}")
        return opened({client_id: ledgers / f"{client_id}.db" for client_id in trainers})
    folder = Path(privacy.ledger_dir)
    prepare_folder(folder, f'privacy.ledger_dir = "{folder}"')
    # Locked, so that no other process adds ledgers after the folder's ledgers are listed and before ours are made.
    with held_folder(folder):
        return opened(_shared_ledgers(folder, {c: trainer.holding for c, trainer in trainers.items()}))


def noise_for(plan: PrivacyPlan, training: TrainingPlan, client_id: str, key: ReleaseKey) -> LaplaceSource:
    """A fresh noise source for every release, on the device that trains.

    Only a run that is marked "not private" draws noise from the seed.
    """
    if plan.noise == "reproducible":
        return NumpyLaplace(generator(training.seed, "noise", client_id, key.round, key.attempt))
    if plan.noise == "opendp":
        return ExactLaplace()
    return _device_noise(training.workload) or NumpyLaplace(entropy_rng())


def _open(
    plan: PrivacyPlan, training: TrainingPlan, client_id: str, trainer: Trainer, path: Path, closing: ExitStack
) -> ReleasePrivacy:
    try:
        ledger = Ledger(path, plan.budget, plan.life, **_ledger_identity(plan, client_id, trainer))
    except LedgerError as error:  # nothing was sent yet, so this is bad input
        raise ConfigError(str(error)) from error
    closing.callback(ledger.close)
    return ReleasePrivacy(plan.mechanism, ledger, partial(noise_for, plan, training, client_id))


def _ledger_identity(plan: PrivacyPlan, client_id: str, trainer: Trainer) -> dict[str, str]:
    """The ledger's owner, and the values that must be equal for all of its releases so that their ε add up."""
    # Both samplers of fresh noise spend alike. Noise from the seed is not private, whatever is drawn after it.
    noise = "reproducible" if plan.noise == "reproducible" else "fresh"
    unit = plan.mechanism.unit
    identity = {"unit": unit, "noise": noise}
    if plan.life is None:  # a lifetime budget holds for all examples that a client ever trains on
        identity["examples"] = trainer.holding.examples
    if not plan.ledger_dir:  # in ledger_dir, examples keep their ledger under any client id
        identity["client_id"] = client_id
    # In this unit, the ε of an upload is d times that of a coordinate.
    return identity | {"model_size": str(trainer.manifest.charged.size)} if unit == "coordinate" else identity


def _shared_ledgers(folder: Path, holdings: Mapping[str, Holding]) -> dict[str, Path]:
    """Each client's ledger file in a folder that outlives runs. It belongs to the client's examples, not to its id.

    ConfigError if examples without a ledger may overlap those of another ledger, or if two clients hold the same ones.
    """
    key = f'privacy.ledger_dir = "{folder}"'
    by_examples, dealings = dict[str, Path](), set[str]()
    for path in sorted(folder.glob("*.db")):
        if (named := _SHARED_NAME.fullmatch(path.stem)) is None:
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


def _device_noise(workload: Workload) -> LaplaceSource | None:
    """The noise source on the device that trains; None without a GPU: numpy is faster on the processor."""
    if workload.model == "synthetic":
        return None
    from pausefl_client.training.torch_trainer import resolve_device

    device = resolve_device(workload.device)
    if device.type == "cpu":
        return None
    from pausefl_client.privacy.device_noise import DeviceLaplace, secret_generator

    return DeviceLaplace(secret_generator(device))
