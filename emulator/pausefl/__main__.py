"""`python -m pausefl` is the `pausefl` command."""

from pausefl.cli import main

if __name__ == "__main__":
    main()
