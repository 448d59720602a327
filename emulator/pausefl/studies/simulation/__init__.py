"""Simulates policies on drawn latencies or drifts, without network and training.

May live here: the loops of simulations and their outputs.
"""
