"""Common to every process that the emulator starts: start, environment, event loop, logs, end."""
