"""Runs the server in a process: what it is handed, its evaluator, its models and its summary.

May live here: what a server process needs, and nothing of clients' processes.
"""
