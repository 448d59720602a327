"""The server: selects clients, sends them the model, measures, aggregates, and writes everything down.

This package holds the code that a deployed server runs. It must not use torch, or emulate clients or their links.
"""
