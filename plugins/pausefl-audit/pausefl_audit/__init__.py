"""`pausefl audit`: measures what an experiment's or a run's releases leak, and checks a run's ledgers.

This module is empty so that clients with canaries, which import `dealt`, do not import the server.
"""
