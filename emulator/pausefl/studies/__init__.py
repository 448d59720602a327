"""Several runs that belong together: comparisons of policies, sweeps over settings.

May live here: code that plans several runs and gathers their results. Not here: how one run is played.
"""
