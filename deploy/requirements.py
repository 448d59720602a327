"""Print the requirements of a pyproject.toml and of its named extras, so that images install them in a separate layer.

python requirements.py pyproject.toml EXTRA...; the extra "build" means what building the project's wheel requires.
"""

import sys
import tomllib
from pathlib import Path


def main(path: str, *extras: str) -> None:
    """Print one requirement per line."""
    declared = tomllib.loads(Path(path).read_text("utf-8"))
    project, of_extra = declared["project"], {"build": declared["build-system"]["requires"]}
    of_extra |= project["optional-dependencies"]
    for requirement in [*project["dependencies"], *(r for extra in extras for r in of_extra[extra])]:
        print(requirement)


main(*sys.argv[1:])
