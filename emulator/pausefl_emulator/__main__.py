"""`python -m pausefl_emulator` is the `pausefl` command."""

from pausefl_emulator.cli import main

if __name__ == "__main__":
    main()
