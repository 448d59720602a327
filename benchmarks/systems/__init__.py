"""One script per system, which runs in that system's virtual environment and imports no other system's packages."""
