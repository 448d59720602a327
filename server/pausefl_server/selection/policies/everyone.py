"""Full participation: FedAvg with every client, with or without privacy."""

from dataclasses import dataclass
from typing import Any, ClassVar

from pausefl_server.selection.base import Context, Policy, Selection


@dataclass(frozen=True)
class All(Policy):
    """Chooses every eligible client, whatever m is."""

    needs_rounds: ClassVar[bool] = True

    def select(self, state: Any, context: Context) -> Selection:
        return Selection(context.eligible)
