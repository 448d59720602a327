"""Fails if a Kubernetes overlay does not render, or renders to invalid objects (part of `make lint`)."""

import shutil
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import yaml

DEPLOY = Path(__file__).resolve().parent.parent / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
# Files that are applied separately, and that are deleted with no overlay.
ALONE = (
    "kubernetes/namespace.yaml",
    "kubernetes/components/data/claim.yaml",
    "kubernetes/sweep/claim.yaml",
    "prometheus/kubernetes-rbac.yaml",
)
# The oldest version that the manifests support, and the newest whose schemas are installed.
VERSIONS = ("1.31", kubernetes_validate.latest_version())


def main() -> None:
    """Render all overlays, and validate each object strictly: fields unknown to the schemas are errors."""
    for name in ALONE:
        check(DEPLOY / name, (DEPLOY / name).read_text("utf-8"))
    commands = {"kubectl": ["kubectl", "kustomize"], "kustomize": ["kustomize", "build"]}
    command = next((c for name, c in commands.items() if shutil.which(name)), None)
    if command is None:
        print("deploy/kubernetes: not checked, neither kubectl nor kustomize is installed")
        return
    for folder in (*sorted((KUBERNETES / "overlays").iterdir()), KUBERNETES / "sweep", DEPLOY / "grafana/dashboards"):
        rendered = subprocess.run([*command, folder], capture_output=True, text=True, check=False)
        if rendered.returncode != 0:
            sys.exit(f"{folder}: {rendered.stderr.strip()}")
        check(folder, rendered.stdout)


def check(source: Path, text: str) -> None:
    """Exit with a line that names the error if an object of the source is invalid."""
    for thing in yaml.safe_load_all(text):
        for version in VERSIONS:
            try:
                kubernetes_validate.validate(thing, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                where = ".".join(map(str, error.absolute_path))
                name = f"{thing['kind']} {thing['metadata']['name']}"
                sys.exit(f"{source}: {name}: {where}: {error.message} (Kubernetes {version})")


if __name__ == "__main__":
    main()
