"""Slurm: `pausefl allocation` plays one run on the machines of an allocation, and `--on slurm` campaigns as jobs."""
