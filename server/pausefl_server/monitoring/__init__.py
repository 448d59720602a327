"""Shows a run to the outside: metrics, the live page, a snapshot of the run, progress.

May live here: what reads the run. Nothing in this folder changes it.
"""
