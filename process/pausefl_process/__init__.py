"""Code that every process of a run uses: HTTP server, host monitor, plug-ins, durable files, events, an orderly end.

May live here: what servers, clients and evaluators need for themselves and do not have to agree on.
"""
