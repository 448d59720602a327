"""Runs clients in a process: what it is handed, its links, its trainers, its ledgers, the slot it holds.

May live here: what a client process needs, and nothing of the server.
"""
