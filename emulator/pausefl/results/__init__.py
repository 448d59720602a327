"""Numbers computed from a finished run.

May live here: pure computations on the log. Not here: pictures; only the package `report` imports matplotlib.
"""
