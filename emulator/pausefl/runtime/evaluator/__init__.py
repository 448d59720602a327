"""Evaluates models on public data, in a process of its own.

May live here: the evaluation itself, its process, and its transport.
"""
