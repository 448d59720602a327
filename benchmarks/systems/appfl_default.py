"""APPFL's asynchronous server and clients over gRPC, as they come."""

from benchmarks.systems.appfl_grpc import main

if __name__ == "__main__":
    main(collects=True)
