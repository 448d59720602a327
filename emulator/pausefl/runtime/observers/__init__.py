"""Observers receive a run's progress, as its own display does: TensorBoard, MLflow, or the user's own code.

May live here: observers, how they are found, and the threads that they run in.
"""

from pausefl.runtime.observers.base import Observer
from pausefl.runtime.observers.loading import check_methods, check_observers, load_observers
from pausefl.runtime.observers.observed import Observed

__all__ = ["Observed", "Observer", "check_methods", "check_observers", "load_observers"]
