"""`make benchmarks`: pausefl beside the systems that people use today, measured in alternation in one session.

May live here: what plays and measures the systems (`systems/`, a script each) and what writes benchmarks/peers.md.
"""
