"""pausefl on its virtual clock. The clients of a round train together if the model is small."""

from benchmarks.systems.pausefl_itself import main
from benchmarks.systems.task import Task, settings_of

if __name__ == "__main__":
    is_small = not settings_of(Task.given())["channels"]
    main("experiment.clock=virtual", f"clients.batched={'on' if is_small else 'off'}")
