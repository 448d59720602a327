"""The server: selects clients, sends them the model, measures, aggregates, and writes everything down.

May live here: what a deployed server runs. Not here: torch, and anything that emulates clients or their links.
"""
