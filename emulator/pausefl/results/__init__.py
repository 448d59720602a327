"""Numbers computed from a finished run.

May live here: pure computations on the log. Not here: figures; nothing in this folder imports matplotlib.
"""
