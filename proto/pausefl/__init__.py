"""What server and clients agree on: the wire, the privacy budget, random draws, actors, errors."""

__version__ = "0.1.0"
