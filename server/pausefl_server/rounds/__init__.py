"""Rounds and asynchronous steps: membership of clients, the coordinator, the open step, and evaluation."""
