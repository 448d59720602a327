"""Data sets of the Hugging Face Hub or of a local folder, with Flower's partitioners.

    [workload]
    dataset = "hf:flwrlabs/femnist"        # or "hf:/data/femnist?label=character&owner=writer_id"
    partition = "by-client"                # each client has the examples of one owner

A local folder holds parquet, CSV or image files, or the output of `datasets.save_to_disk`. May live here: the choice of
columns for inputs, labels and owners, and their conversion to arrays.
"""

from collections.abc import Callable
from functools import partial

from pausefl_client.data.datasets import Dataset
from pausefl_hf.examples import load_examples
from pausefl_hf.partitioners import Flower

__all__ = ["Flower", "load_examples"]


def __getattr__(name: str) -> Callable[[int], Dataset]:
    """The factory of the data set that `workload.dataset = "hf:NAME"` names (PEP 562)."""
    if "/" not in name:
        raise AttributeError(f"{name!r} is no data set: must be hf:OWNER/NAME, or hf: and the path of a folder")
    return partial(load_examples, name)
