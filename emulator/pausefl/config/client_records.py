"""The client's side of an experiment as records: budget, mechanism, training and TLS. Each is checked as it is made."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pausefl.config.kinds import read_kind
from pausefl.config.tables import PrivacyTable, TlsTable, WorkloadTable
from pausefl_client.data.datasets import DATASETS
from pausefl_client.data.partition import PARTITIONERS, Partitioner
from pausefl_client.privacy.mechanism import Mechanism
from pausefl_client.privacy.release import schedule_key
from pausefl_client.registries import MODELS, TRAINING_METHODS, WITH_CONTROL
from pausefl_client.training.trainer import TrainingSettings
from pausefl_proto.budget import Budget
from pausefl_proto.errors import ConfigError
from pausefl_proto.tls import Tls

if TYPE_CHECKING:  # which needs torch
    from pausefl_client.training.method import TrainingMethod


def budget_of(privacy: PrivacyTable) -> Budget | None:
    """ε̄, η and the least ε of a release; None in a run without privacy. ConfigError."""
    if not privacy.enabled:
        return None
    budget = Budget(privacy.epsilon_budget, privacy.eta, privacy.epsilon_floor)
    if not privacy.noise_to_clip_max:
        return budget
    # Noise scale over clip bound is 2/ε in both units: sensitivity is twice the bound.
    least_for_noise = 2 / privacy.noise_to_clip_max
    if least_for_noise > budget.epsilon(1):
        raise ConfigError(
            f"privacy.noise_to_clip_max = {privacy.noise_to_clip_max:g}: must be at least"
            f" 2/epsilon_1 = {2 / budget.epsilon(1):g}, or no client could ever release anything"
        )
    return replace(budget, epsilon_floor=max(privacy.epsilon_floor, least_for_noise))


def mechanism_of(privacy: PrivacyTable) -> Mechanism | None:
    """Clipping and noise, None in a run without privacy."""
    return Mechanism(privacy.unit, privacy.clip) if privacy.enabled else None


def schedule_of(privacy: PrivacyTable) -> str:
    """The privacy both ends agree on, empty in a run without: a job under any other is refused."""
    budget, mechanism = budget_of(privacy), mechanism_of(privacy)
    return schedule_key(budget, mechanism, privacy.noise) if budget is not None and mechanism is not None else ""


def training_of(workload: WorkloadTable) -> TrainingSettings:
    """What a client does with the model."""
    return TrainingSettings(
        optimizer=workload.optimizer,
        optimizer_options=workload.optimizer_options,
        schedule=workload.schedule,
        learning_rate=workload.learning_rate,
        batch_size=workload.batch_size,
        epochs=workload.epochs,
        max_steps=workload.max_steps,
    )


def method_of(workload: WorkloadTable) -> "TrainingMethod":
    """How one client trains, a fresh object; ConfigError. Imports torch."""
    method: TrainingMethod = read_kind(TRAINING_METHODS, _method_table(workload), "workload.training")
    return method


def method_name(workload: WorkloadTable) -> str:
    """The name of the training method; empty for a model that is not trained."""
    if workload.model == "synthetic":
        return ""
    table = _method_table(workload)
    return table if isinstance(table, str) else str(table.get("kind", ""))


def has_control(workload: WorkloadTable) -> bool:
    """Whether a control variate travels with the model. Imports no torch."""
    return method_name(workload) in WITH_CONTROL


def _method_table(workload: WorkloadTable) -> str | dict[str, Any]:
    if not workload.proximal_mu:
        return workload.training
    if workload.training != "plain":
        raise ConfigError('workload.proximal_mu: goes with workload.training = "plain"')
    return {"kind": "fedprox", "mu": workload.proximal_mu}


def check_names(workload: WorkloadTable) -> None:
    """ConfigError for a name in [workload] that stands for nothing. Imports none of what they stand for."""
    training_of(workload)
    training = _method_table(workload)
    DATASETS.check_name(workload.dataset, "workload.dataset")
    if workload.model == "synthetic":
        return
    MODELS.check_name(workload.model, "workload.model")
    if isinstance(training, str):
        TRAINING_METHODS.check_name(training, "workload.training")
    elif isinstance(training.get("kind"), str):
        TRAINING_METHODS.check_name(training["kind"], "workload.training.kind")
    else:
        raise ConfigError("workload.training.kind: is missing")


def partitioner_of(workload: WorkloadTable) -> Partitioner:
    """How training examples are dealt out to clients; ConfigError."""
    table = workload.partition
    if "dirichlet" in (table, table.get("kind") if isinstance(table, dict) else ""):
        raise ConfigError(
            'workload.partition = "dirichlet": is ambiguous; "dominant-label" draws sizes and a dominant label'
            ' (PAUSE), "label-dirichlet" draws label proportions (Hsu et al., 2019)'
        )
    partitioner: Partitioner = read_kind(PARTITIONERS, table, "workload.partition")
    return partitioner


def tls_of(table: TlsTable, client_id: str | None = None) -> Tls | None:
    """What a process, or this client in it, speaks TLS with; None to speak in the clear."""
    paths = table.model_dump()
    if client_id is not None:  # in the paths of other processes, nothing is put in its place
        paths = {name: path.replace("{client_id}", client_id) for name, path in paths.items()}
    files = Tls(**paths)
    return None if files == Tls() else files


def check_privacy(privacy: PrivacyTable) -> None:
    """ConfigError for what no single key of [privacy] shows."""
    budget_of(privacy)
    mechanism_of(privacy)
    if privacy.ledger_dir and not privacy.enabled:
        raise ConfigError(
            "privacy.enabled = false: goes without privacy.ledger_dir only; updates would leave bare and uncharged, of"
            " examples whose one budget is kept there"
        )
    if privacy.reproducible_noise and privacy.sampler == "opendp":
        raise ConfigError('privacy.reproducible_noise = true: goes with privacy.sampler = "laplace" only')
    if privacy.reproducible_noise and privacy.ledger_dir:
        raise ConfigError(
            "privacy.reproducible_noise = true: goes without privacy.ledger_dir only; noise from the seed hides"
            " nothing, so it must not be charged to ledgers of private runs"
        )
