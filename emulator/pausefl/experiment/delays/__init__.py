"""Delays as an experiment describes them: laws read from tables, and files of measured delays."""
