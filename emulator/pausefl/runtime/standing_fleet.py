"""A standing fleet: clients from outside that connect to one address, and stay for one run after another."""

from dataclasses import dataclass

from pausefl.experiment.experiment import Experiment, with_values
from pausefl.experiment.validation import check_address
from pausefl_proto.errors import ConfigError


@dataclass(frozen=True)
class StandingFleet:
    """The address at which a run's server listens for clients from outside. ConfigError unless it is HOST:PORT."""

    address: str
    runs_to_come: int = 0
    """How many runs follow this one at the address. Clients receive this number at the end of the run."""

    def __post_init__(self) -> None:
        check_address("--fleet", self.address)

    @property
    def farewell(self) -> str:
        """A note for clients, added to the reason why a run is over; empty if no run follows."""
        return f"; runs that follow here: {self.runs_to_come}" if self.runs_to_come else ""

    def serve(self, experiment: Experiment) -> Experiment:
        """The experiment with its server at this address. ConfigError if clients from outside cannot play it."""
        refuse_whole_runs(experiment, "--fleet")
        host, _, port = self.address.rpartition(":")
        return with_values(experiment, "server", host=host, port=int(port))


def refuse_whole_runs(experiment: Experiment, who: str) -> None:
    """ConfigError for settings that only `pausefl run` can play: the virtual clock, and netem."""
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
