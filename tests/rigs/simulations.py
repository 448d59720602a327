"""An experiment to simulate."""

CONFIG = """
clients.count = 8
[experiment]
seed = 3
[selection]
policy = "{policy}"
m = 3
[workload]
examples = 800
partition = "{partition}"
"""
