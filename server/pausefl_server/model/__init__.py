"""The global model: how updates are aggregated, bounded and applied. Pure functions of vectors; no client, no file."""
