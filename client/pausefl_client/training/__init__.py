"""Training on a client: models, training methods, trainers with and without torch, and a trainer's saved state."""
