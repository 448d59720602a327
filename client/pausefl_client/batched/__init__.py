"""Trains several clients in one call: models are stacked and batches put side by side; all else stays per client."""
