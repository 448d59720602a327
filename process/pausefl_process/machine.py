"""The machine a figure was measured on."""

import os
import platform
from pathlib import Path


def processor_name() -> str:
    """Its name where Linux tells it, else what Python knows."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "processor"


def machine_in_words() -> str:
    """How many cores there are, and the processor's name."""
    return f"{os.cpu_count()} cores, {processor_name()}"
