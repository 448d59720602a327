"""Results as pandas DataFrames, if pandas is installed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pausefl.extras import needs

if TYPE_CHECKING:
    import pandas as pd


@needs("pandas")
def data_frame(found: Path | Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> "pd.DataFrame":
    """A DataFrame from a CSV file, columns or rows."""
    import pandas as pd

    return pd.read_csv(found) if isinstance(found, Path) else pd.DataFrame(found)


def flat(found: Mapping[str, Any]) -> dict[str, Any]:
    """The figures with nested mappings flattened: {"a": {"b": 1}} becomes {"a.b": 1}."""
    return {
        f"{name}.{part}" if part else name: value
        for name, of_it in found.items()
        for part, value in (flat(of_it).items() if isinstance(of_it, Mapping) else [("", of_it)])
    }
