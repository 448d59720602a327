"""The virtual clock: the run's own actors, sessions and links on an event loop that skips waiting times.

May live here: the loop, the threads that work in its time, the transport within one process, and that process.
"""
