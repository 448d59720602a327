"""How much of its machine a process was given."""

import os
from pathlib import Path

import pytest

from pausefl_process.machine import available_cores

GIVEN = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("groups", "bounds", "cores"),
    [
        ("0::/job/step", {"job/cpu.max": "100000 100000", "job/step/cpu.max": "max 100000"}, 1),
        ("0::/", {"cpu.max": "1000 100000"}, 1),
        ("0::/", {"cpu.max": "6400000 100000"}, GIVEN),
        ("4:memory:/m\n1:cpu,cpuacct:/job", {"cpu,cpuacct/job/cpu.cfs_quota_us": "50000"}, 1),
        ("1:cpu:/job", {"cpu/job/cpu.cfs_quota_us": "-1"}, GIVEN),
        ("", {}, GIVEN),
    ],
)
def test_a_quota_bounds_cores_as_affinity_does(groups: str, bounds: dict[str, str], cores: int, tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text(groups)
    for name, text in bounds.items():
        file = tmp_path / "tree" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
        file.with_name("cpu.cfs_period_us").write_text("100000\n")
    assert available_cores(tmp_path, tmp_path / "tree") == cores
