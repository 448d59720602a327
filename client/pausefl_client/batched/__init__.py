"""Training of several clients in one call: their models stacked, their batches side by side, all else each its own."""
