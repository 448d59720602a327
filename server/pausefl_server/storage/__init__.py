"""The server's files on disk: the run's log (SQLite), checkpoints of the model, and the way back to a round."""
