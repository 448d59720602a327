"""The recipe of CONTRIBUTING.md, played in a copy of the repository."""

import os
import re
from pathlib import Path

import pytest

from rigs.command import python
from rigs.package import copied_sources

POLICY = '''"""The clients chosen least often: a policy for the test of the recipe."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from pausefl_server.selection.base import Context, Policy, Selection
from pausefl_server.selection.terms import rows_in_tie_order


@dataclass(frozen=True)
class Rarest(Policy):
    """Chooses the m eligible clients that were chosen least often."""

    patience_s: float = 1.0
    """How long the test of the recipe waits."""

    def select(self, state: Any, context: Context) -> Selection:
        rows = rows_in_tie_order(context)
        order = np.argsort(context.table.chosen[rows], kind="stable")
        return Selection(np.sort(rows[order[: self.m]]))
'''
SELECTION = Path("server/pausefl_server/selection")


@pytest.mark.end_to_end
def test_a_policy_that_is_named_alone_comes_under_contract_and_into_the_reference(tmp_path: Path) -> None:
    copied_sources(tmp_path)
    (tmp_path / SELECTION / "policies/rarest.py").write_text(POLICY, "utf-8")
    named = tmp_path / SELECTION / "__init__.py"
    text, count = re.subn(
        r'(        "fastest": Fastest,\n)',
        r'\1        "rarest": "pausefl_server.selection.policies.rarest:Rarest",\n',
        named.read_text("utf-8"),
    )
    assert count == 1
    named.write_text(text, "utf-8")

    contract = played(tmp_path, "-m", "pytest", "-q", "tests/server/test_policies.py", "-k", "rarest")
    assert int(re.findall(r"(\d+) passed", contract)[0]) > 10
    played(tmp_path, "docs/write_reference.py")
    assert "`patience_s`" in (tmp_path / "docs/reference/configuration.md").read_text("utf-8")


def played(checkout: Path, *arguments: str) -> str:
    """What a Python command prints that uses the packages of that checkout."""
    packages = [str(checkout / package) for package in ("proto", "process", "server", "client", "emulator")]
    return python(*arguments, cwd=checkout, PYTHONPATH=os.pathsep.join(packages))
