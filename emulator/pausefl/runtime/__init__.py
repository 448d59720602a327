"""Runs an experiment as processes: the fleet, the server process, client processes, and displays of their progress.

May live here: processes, files of a run directory, network namespaces, the terminal.
"""
