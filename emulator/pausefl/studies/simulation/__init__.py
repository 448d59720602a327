"""Policies and latencies alone: no network, no training.

May live here: the simulation's loops and what it writes.
"""
