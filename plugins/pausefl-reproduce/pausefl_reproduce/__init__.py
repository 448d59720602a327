"""`pausefl reproduce`: repeats published figures by name, with their runs, summaries and pictures.

Not here: the files that define figures (`pausefl.experiment.published`), intervals over seeds, and the page of stored
reproductions (`docs/write_results.py`).
"""
