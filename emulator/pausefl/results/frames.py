"""Results as pandas DataFrames, for those who have pandas."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pausefl_proto.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd


def data_frame(found: Path | Mapping[str, Any] | Sequence[Mapping[str, Any]], name: str) -> "pd.DataFrame":
    """The DataFrame of a CSV file, of columns or of rows; ConfigError, which begins with `name`, without pandas."""
    try:
        import pandas as pd
    except ImportError:
        raise ConfigError(f'{name}: needs pandas, pip install "pausefl[pandas]"') from None
    return pd.read_csv(found) if isinstance(found, Path) else pd.DataFrame(found)


def flat(found: Mapping[str, Any]) -> dict[str, Any]:
    """Figures, with the parts of a table by dotted name."""
    return {
        f"{name}.{part}" if part else name: value
        for name, of_it in found.items()
        for part, value in (flat(of_it).items() if isinstance(of_it, Mapping) else [("", of_it)])
    }
