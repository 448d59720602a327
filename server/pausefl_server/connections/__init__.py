"""Client streams: the gRPC transport, an actor for each connected client, limits on what peers may cost."""
