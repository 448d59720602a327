"""Observers: whom a run tells of its progress besides its own display. TensorBoard, MLflow, or code of one's own.

May live here: observers, how they are found, and the threads that they run in.
"""

from pausefl.runtime.observers.base import Observer
from pausefl.runtime.observers.loading import check_methods, check_observers, load_observers
from pausefl.runtime.observers.observed import Observed

__all__ = ["Observed", "Observer", "check_methods", "check_observers", "load_observers"]
