"""A clock in the hands of a test."""


class Clock:
    """Goes on by `step_s` at every look, and by what `advance` is told; else it stands still."""

    def __init__(self, step_s: float = 0.0) -> None:
        self.now_s = 100.0
        self._step_s = step_s

    def __call__(self) -> float:
        self.now_s += self._step_s
        return self.now_s

    def advance(self, seconds: float) -> None:
        """Let this much time pass."""
        self.now_s += seconds
