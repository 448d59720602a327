"""Shows a run to people and programs: metrics, the live page, a snapshot of the run, progress events.

Code that reads the run belongs here. Nothing in this folder changes the run.
"""
