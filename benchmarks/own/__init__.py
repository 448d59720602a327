"""`python -m benchmarks.own NAME`: this project's own benchmarks (instruments), and the five of `pausefl bench`.

May live here: one module per instrument, the whole set (`all`), and the comparison of two measurements of it (`diff`).
"""

from pausefl.bench import BENCHMARKS, Benchmark

INSTRUMENTS = {
    **BENCHMARKS,
    "scraping": Benchmark(
        "benchmarks.own.scraping", "rounds under scraping and with the live page open, against rounds without either"
    ),
    "twin": Benchmark("benchmarks.own.twin", "the real clock against the virtual one, exchange by exchange"),
    "scale_curve": Benchmark(
        "benchmarks.own.scale_curve", "what a round costs among 100 to 30,000 clients, of whom 50 are chosen"
    ),
    "overload": Benchmark(
        "benchmarks.own.overload", "how late the server's event loop is while a crowd joins, or floods it"
    ),
    "access_points": Benchmark("benchmarks.own.access_points", "rounds of clients that share buckets: R1, R2, random"),
    "shaping": Benchmark("benchmarks.own.shaping", "the token bucket against the kernel's tbf (needs root)"),
    "startup": Benchmark(
        "benchmarks.own.startup",
        "how long clients take to connect, the memory each has to itself, and short runs whole",
    ),
    "annealing": Benchmark(
        "benchmarks.own.annealing",
        "how near annealing comes to the optimum, over runs with a seed and client ids of their own",
    ),
    "quality": Benchmark("benchmarks.own.quality", "whole runs of the policies beside the archived ones"),
    "censoring": Benchmark(
        "benchmarks.own.censoring",
        "estimates of latency and regret where rounds have deadlines and links heavy tails",
    ),
    "training": Benchmark(
        "benchmarks.own.training",
        "a client's training against the leanest loop of plain torch, and clients together against one by one",
    ),
    "encodings": Benchmark(
        "benchmarks.own.encodings", "updates in fewer bytes over a narrow way up: latency and accuracy"
    ),
    "power": Benchmark("benchmarks.own.power", "what the audit of a run shows after how many releases"),
    "privacy": Benchmark("benchmarks.own.privacy", "what a release costs: clip, noise and the durable ledger entry"),
}
"""All instruments by name, including those of `pausefl bench`."""
