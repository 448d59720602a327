"""The server's files on disk: the run's log (SQLite) and checkpoints of the model. Restores a run from them."""
