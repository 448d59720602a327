"""Selection policies: their interface, the records they see, the checks of their choices, and a registry by name.

Code that several policies share belongs here, as pure functions of the context.
"""

from pausefl_process.registry import Registry
from pausefl_server.selection.base import Context, Inspection, Oracle, Policy, Selection
from pausefl_server.selection.observed import PolicyObservation, PolicyRound
from pausefl_server.selection.policies.baselines import All, Clustered, Fastest, PowD, Random, Ucb
from pausefl_server.selection.policies.brute import PauseBrute
from pausefl_server.selection.policies.chr import Chr
from pausefl_server.selection.policies.fed_ts import DriftUcb, FedTs
from pausefl_server.selection.policies.fedat import FedAt
from pausefl_server.selection.policies.genie import Genie
from pausefl_server.selection.policies.oort import Oort
from pausefl_server.selection.policies.pause import Pause
from pausefl_server.selection.policies.pisces import Pisces
from pausefl_server.selection.policies.pns import Pns
from pausefl_server.selection.policies.sa_pause import SaPause
from pausefl_server.selection.policies.tifl import Tifl
from pausefl_server.selection.validation import checked

__all__ = [
    "POLICIES",
    "Context",
    "Inspection",
    "Oracle",
    "Policy",
    "PolicyObservation",
    "PolicyRound",
    "Selection",
    "checked",
    "policy_class",
]

POLICIES = Registry(
    "policies",
    {
        "pause": Pause,
        "pause-brute": PauseBrute,
        "sa-pause": SaPause,
        "genie": Genie,
        "random": Random,
        "all": All,
        "fastest": Fastest,
        "clustered": Clustered,
        "ucb": Ucb,
        "oort": Oort,
        "pow-d": PowD,
        "fed-ts": FedTs,
        "drift-ucb": DriftUcb,
        "chr": Chr,
        "pns": Pns,
        "tifl": Tifl,
        "pisces": Pisces,
        "fedat": FedAt,
    },
    base="pausefl_server.selection:Policy",
)


def policy_class(name: str, key: str = "selection.policy") -> type[Policy]:
    """Returns the policy class of this name. Raises ConfigError, which begins with `key`, if there is none."""
    found: type[Policy] = POLICIES.find(name, key)
    return found
