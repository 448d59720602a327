"""One script for each system, run in that system's virtual environment: none imports another system's packages."""
