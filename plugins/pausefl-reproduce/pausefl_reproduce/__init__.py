"""`pausefl reproduce`: published figures repeated by name, their runs, summaries and pictures.

Not here: what a figure is (`pausefl.experiment.published`), intervals over seeds, or the page of those that are kept
(`docs/write_results.py`).
"""
