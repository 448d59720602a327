"""APPFL's asynchronous server and clients over gRPC, with their default settings."""

from benchmarks.systems.appfl_grpc import main

if __name__ == "__main__":
    main(collects=True)
