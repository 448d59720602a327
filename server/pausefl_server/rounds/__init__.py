"""The rounds and their members: membership, the coordinator, one open step at a time, evaluation."""
