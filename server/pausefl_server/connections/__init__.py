"""Client streams: the gRPC transport, an actor for each connected client, and limits on the resources peers use."""
