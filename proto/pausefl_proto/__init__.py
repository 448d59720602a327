"""The agreement between server and clients: the wire, the privacy budget, random draws, actors, errors.

May live here: what both sides must agree on, and the types they share. Not here: what only one side needs.
"""
