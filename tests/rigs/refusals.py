"""Checks of refusals. Python raises an error of one line; the command prints one line and exits with its status."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pausefl.cli import main
from pausefl_proto.errors import ConfigError, PauseflError


@contextmanager
def refused(said: str, error: type[PauseflError] = ConfigError) -> Iterator[None]:
    """Assert that the block is refused with one line that contains `said`."""
    with pytest.raises(error) as caught:
        yield
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def complaint(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 2) -> str:
    """The one line with which a command is refused."""
    with pytest.raises(SystemExit) as ended:
        main([*map(str, arguments)])
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == status, line
    assert line.startswith("pausefl: ")
    return line.removeprefix("pausefl: ")
