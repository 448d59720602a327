"""Studies of recorded logs without another run: a policy's choices on them, and latency laws fitted to them.

May live here: folds over a log, estimates from it, and how they are written. Not here: how a round is played.
"""
