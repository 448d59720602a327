"""The common parts of all processes that the emulator starts: start, environment, event loop, logs, end."""
