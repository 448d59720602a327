"""Which mistakes of an experiment are told with the name of its file."""

import re
from pathlib import Path

import pytest

from pausefl.experiment.loading import load_experiment
from pausefl_proto.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[experiment\n", "mine.toml: not valid TOML: "),
        ("[experiment]\nrounds = 0\n", "mine.toml: experiment.rounds = 0: must be at least 1"),
        ("[selection]\nm = 31\n", "mine.toml: selection.m = 31: must be at most clients.count = 30"),
    ],
)
def test_a_mistake_in_a_file_is_told_with_the_files_name(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(ConfigError, match=f"^{re.escape(str(tmp_path))}/{re.escape(message)}"):
        load_experiment(str(tmp_path / "mine.toml"))


def test_shared_ledgers_lie_beside_the_file_wherever_it_is_run_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found from the working directory, they would begin anew, with another budget, in every folder."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/mine.toml").write_text('[privacy]\nledger_dir = "holders"\n')
    for folder in (tmp_path, tmp_path / "mine"):
        monkeypatch.chdir(folder)
        found = load_experiment(str(tmp_path / "mine/mine.toml")).privacy.ledger_dir
        assert found == str(tmp_path / "mine/holders")
    said = load_experiment(str(tmp_path / "mine/mine.toml"), ["privacy.ledger_dir=said"])
    assert said.privacy.ledger_dir == str(tmp_path / "mine/said")
    assert load_experiment("demo", ["privacy.ledger_dir="]).privacy.ledger_dir == ""


def test_an_override_that_is_none_is_not_blamed_on_the_file(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("")
    with pytest.raises(ConfigError, match=r"^--set rounds: must be table\.key=value"):
        load_experiment(str(tmp_path / "mine.toml"), ["rounds"])


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("[experiment]\nrounds = 3\n", encoding="utf-8-sig")
    assert load_experiment(str(tmp_path / "mine.toml")).experiment.rounds == 3
