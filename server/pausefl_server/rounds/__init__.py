"""Who takes part, and the rounds they play: membership, the coordinator, one open round at a time, evaluation."""
