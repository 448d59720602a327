"""Carried by every process of a run: an HTTP server to be watched by, a monitor of its host, plug-ins, its own start.

May live here: what servers, clients and evaluators need for themselves and do not have to agree on.
"""
