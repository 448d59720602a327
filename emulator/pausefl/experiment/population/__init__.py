"""The population of clients: how they behave, when they are available, how far newcomers drift.

May live here: pure descriptions of clients, given a seed and a round.
"""
