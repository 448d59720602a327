"""The client: trains on its own data, adds noise, keeps its own ledger, and answers over a link with delays.

May live here: what a data holder runs on its own machine. Not here: anything that needs the server or the emulator.
"""
