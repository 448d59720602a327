"""Fails when proto/pausefl_proto/v1 is not what its .proto files generate (part of `make lint`)."""

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAMES = ("federation", "evaluation")


def main() -> None:
    """Generate the stubs into a temporary folder and compare."""
    with tempfile.TemporaryDirectory() as folder:
        plugin = Path(sys.executable).parent / "protoc-gen-mypy"
        command = [sys.executable, "-m", "grpc_tools.protoc", "-Iproto", f"--plugin=protoc-gen-mypy={plugin}"]
        command += [f"--python_out={folder}", f"--mypy_out={folder}"]
        command += [f"pausefl_proto/v1/{name}.proto" for name in NAMES]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        for name in (f"{name}_pb2.{end}" for name in NAMES for end in ("py", "pyi")):
            fresh = Path(folder, "pausefl_proto/v1", name).read_text("utf-8")
            if fresh != (ROOT / "proto/pausefl_proto/v1" / name).read_text("utf-8"):
                sys.exit(f"proto/pausefl_proto/v1/{name} is not what its .proto file generates: run `make proto`")


if __name__ == "__main__":
    main()
