"""Data sets: downloaded, read, split, dealt out to clients, and identified by digests."""
