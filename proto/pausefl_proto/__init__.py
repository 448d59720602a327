"""The agreement between server and clients: the wire format, the privacy budget, random draws, TLS, errors.

What both sides must agree on belongs here, and the types they share. What only one side needs does not.
"""
