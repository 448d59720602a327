"""Runs the server in a process: the process's plan, its evaluator, its model files and its summary.

May live here: what a server process needs, and nothing of clients' processes.
"""
