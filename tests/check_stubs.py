"""Fails when proto/pausefl/v1 is not what its .proto file generates (part of `make lint`)."""

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STUBS = ("federation_pb2.py", "federation_pb2.pyi")


def main() -> None:
    """Generate into a temporary folder and compare."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            "-Iproto",
            f"--python_out={folder}",
            f"--mypy_out={folder}",
        ]
        plugin = Path(sys.executable).parent / "protoc-gen-mypy"
        command += [f"--plugin=protoc-gen-mypy={plugin}", "pausefl/v1/federation.proto"]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        for name in STUBS:
            fresh = Path(folder, "pausefl/v1", name).read_text("utf-8")
            if fresh != (ROOT / "proto/pausefl/v1" / name).read_text("utf-8"):
                sys.exit(f"proto/pausefl/v1/{name} does not match federation.proto: run `make proto`")


if __name__ == "__main__":
    main()
