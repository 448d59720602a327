"""`make benchmarks`: compares pausefl with systems in use today. They take turns in one session.

May live here: code that plays and measures the systems (one script each in `systems/`) or writes benchmarks/peers.md.
"""
