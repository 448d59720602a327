"""The population of clients: their behaviours, their availability, and the drifts of newcomers.

May live here: pure descriptions of clients, given a seed and a round.
"""
