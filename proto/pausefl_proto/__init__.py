"""What server and clients agree on: the wire, the privacy budget, random draws, actors, errors."""
