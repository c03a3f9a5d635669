"""Print the exact versions of pyproject.toml, less those that a file of overrides replaces."""

import re
import sys
import tomllib
from pathlib import Path


def name(requirement: str) -> str:
    return re.split(r"[=<>! ]", requirement, maxsplit=1)[0]


overridden = {name(line) for line in Path(sys.argv[1]).read_text().splitlines()}
project = tomllib.loads(Path("pyproject.toml").read_text())
pins = project["tool"]["uv"]["constraint-dependencies"]
print("\n".join(pin for pin in pins if name(pin) not in overridden))
