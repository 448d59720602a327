"""Protects a data holder: clipping and noise, the ledger of spent ε, and the release that joins them."""
