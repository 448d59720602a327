"""Protection of a data holder: clip and noise, the ledger, and the release that joins them."""
