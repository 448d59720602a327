"""Print what the named extras of a pyproject.toml need, so that images have it in a layer of its own.

python requirements.py pyproject.toml EXTRA...; the extra "build" is what building the project's wheel needs.
"""

import sys
import tomllib
from pathlib import Path


def main(path: str, *extras: str) -> None:
    """One requirement a line."""
    declared = tomllib.loads(Path(path).read_text("utf-8"))
    project, of_extra = declared["project"], {"build": declared["build-system"]["requires"]}
    of_extra |= project["optional-dependencies"]
    for requirement in [*project["dependencies"], *(r for extra in extras for r in of_extra[extra])]:
        print(requirement)


main(*sys.argv[1:])
