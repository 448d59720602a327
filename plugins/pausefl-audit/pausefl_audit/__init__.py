"""`pausefl audit`: what an experiment's or a run's releases leak, and whether its ledgers say so.

Empty, so that a client that is dealt canaries imports no server.
"""
