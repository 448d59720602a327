"""The server: selects clients, sends them the model, measures, aggregates, and writes everything down."""
