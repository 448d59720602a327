"""Published training methods, one paper a file."""
