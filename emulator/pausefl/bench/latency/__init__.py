"""Benchmarks of measured and drawn latencies: fidelity, shared access points, kernel shaping, censored rounds."""
