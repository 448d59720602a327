"""A fleet that stands: clients from outside that come to one address, and stay for one run after the other."""

from dataclasses import dataclass

from pausefl.experiment.experiment import Experiment
from pausefl.experiment.validation import check_address
from pausefl_proto.errors import ConfigError


@dataclass(frozen=True)
class StandingFleet:
    """Where a run's server listens for its clients, which nobody here starts. ConfigError for what is no HOST:PORT."""

    address: str
    runs_to_come: int = 0
    """How many runs its clients are told to wait for when this one is over."""

    def __post_init__(self) -> None:
        check_address("--fleet", self.address)

    @property
    def farewell(self) -> str:
        """A note to clients beside the reason why a run is over."""
        return f"; runs that follow here: {self.runs_to_come}" if self.runs_to_come else ""

    def serve(self, experiment: Experiment) -> Experiment:
        """The experiment whose server listens here; ConfigError for one that no clients from outside can play."""
        refuse_whole_runs(experiment, "--fleet")
        host, _, port = self.address.rpartition(":")
        server = experiment.server.model_copy(update={"host": host, "port": int(port)})
        return experiment.model_copy(update={"server": server})


def refuse_whole_runs(experiment: Experiment, who: str) -> None:
    """ConfigError for what only the process that plays a whole run can do."""
    refuse_virtual(experiment, who)
    if experiment.latency.injection == "netem":
        raise ConfigError(
            f'latency.injection = "netem": goes with pausefl run, which makes the namespaces; {who} takes "link"'
        )


def refuse_virtual(experiment: Experiment, who: str) -> None:
    """ConfigError for the virtual clock, where one process plays all parts."""
    if experiment.experiment.clock == "virtual":
        raise ConfigError(
            f'experiment.clock = "virtual": goes with pausefl run, which plays all parts in one process; {who} takes'
            ' "real"'
        )
