"""Data sets: fetched, read, split, dealt out to clients, and told apart by digests."""
