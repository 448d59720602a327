"""Latency laws: the delays that a client's link adds to exchanges. Small frozen records, pure functions of a generator.

May live here: laws of delays, their means and quantiles. Not here: their TOML tables (`delays`), or the waiting itself.
"""
