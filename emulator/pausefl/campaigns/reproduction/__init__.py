"""Published figures repeated by name: their runs, summaries, pictures, and the page of those that are kept.

May live here: all of `pausefl reproduce`. Not here: what a figure is (`pausefl.published`), or statistics over seeds.
"""
