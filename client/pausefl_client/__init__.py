"""The client: trains on its own data, adds the noise, keeps its own ledger, answers over a link with delays."""
