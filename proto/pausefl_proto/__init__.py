"""What server and clients agree on: the wire, the privacy budget, random draws, actors, errors.

May live here: what both sides must agree on, and the types they share. Not here: what only one side needs.
"""
