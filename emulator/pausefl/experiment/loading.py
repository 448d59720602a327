"""Loads an experiment from a file, a preset or text."""

from pausefl.experiment.experiment import Experiment, experiment_of
from pausefl.experiment.toml_source import Overrides, document_of, is_file, naming, read_source


def load_experiment(source: str, overrides: Overrides = ()) -> Experiment:
    """Read a TOML file or a preset by name, apply overrides, validate. ConfigError says what is wrong."""
    return parse_experiment(read_source(source), overrides, source if is_file(source) else "")


def parse_experiment(text: str, overrides: Overrides = (), file: str = "") -> Experiment:
    """Validate an experiment's TOML text. Raises ConfigError, which begins with `file`, the text's origin, if given."""
    document = document_of(text, overrides, file)
    with naming(file):
        return experiment_of(document)
