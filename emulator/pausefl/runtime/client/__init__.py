"""Runs clients in a process: the process's plan, its links, trainers and ledgers, and the slot that it holds.

May live here: what a client process needs, and nothing of the server.
"""
