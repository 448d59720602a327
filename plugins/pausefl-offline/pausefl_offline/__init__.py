"""Studies of recorded logs without another run: a policy's choices on them, and latency laws fitted to them.

These are `pausefl replay` and `pausefl fit-latency`. May live here: computations on a log, estimates from it, and their
outputs. Not here: how a round is played.
"""
