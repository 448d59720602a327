"""Training for a client: models, the trainer with torch, one without, and what a trainer remembers."""
