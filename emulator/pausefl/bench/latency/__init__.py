"""Benchmarks of measured and drawn latencies: fidelity, shared access points, kernel shaping, censored rounds.

May live here: benchmarks of `pausefl bench` in which latency is what is measured.
"""
