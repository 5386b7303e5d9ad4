"""Check that constraints-dev.txt, which `make lock` writes, pins what pyproject.toml asks for; `make lint` runs it.

Every requirement of the extra dev has a pin within its bounds, nothing is pinned for pyproject.toml that it does not
name, and the file holds no address and no path, so that it works with any package index.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
PIN = re.compile(r"^(?P<name>[\w.-]+)==(?P<version>[^\s;]+)( ; .+)?$")
OURS = re.compile(r"modalhash \(pyproject\.toml\)")


def wanted(pyproject: str, extra: str = "dev") -> list[Requirement]:
    """Return the requirements of the package with an extra, and of the extras that this one names."""
    project = tomllib.loads(pyproject)["project"]
    found, extras, done = [Requirement(text) for text in project["dependencies"]], [extra], set()
    while extras:
        if (name := extras.pop()) in done:
            continue
        done.add(name)
        for requirement in map(Requirement, project["optional-dependencies"][name]):
            if requirement.name == project["name"]:
                extras.extend(requirement.extras)
            else:
                found.append(requirement)
    return found


def problems(pyproject: str, lock: str) -> list[str]:
    """Return the problems of a lock, one per line."""
    found, pins, ours, name = [], {}, set(), ""
    for line in lock.splitlines():
        if match := PIN.match(line):
            name = canonicalize_name(match["name"])
            pins.setdefault(name, []).append(Version(match["version"]))
        elif line and not line.lstrip().startswith("#"):
            found.append(f"{line!r} is not a pin")
        if re.search(r"://|@|(?<![\w.])/", line):
            found.append(f"{line!r} has an address or a path")
        if OURS.search(line):
            ours.add(name)
    requirements = wanted(pyproject)
    for requirement in requirements:
        versions = pins.get(canonicalize_name(requirement.name), [])
        if not versions:
            found.append(f"{requirement} is not pinned")
        found += [
            f"{version} is pinned, but {requirement} wanted"
            for version in versions
            if version not in requirement.specifier
        ]
    names = {canonicalize_name(requirement.name) for requirement in requirements}
    found += [f"{name} is pinned for pyproject.toml, which does not name it" for name in sorted(ours - names)]
    return found


if __name__ == "__main__":
    lock = (ROOT / "constraints-dev.txt").read_text(encoding="utf-8")
    wrong = problems((ROOT / "pyproject.toml").read_text(encoding="utf-8"), lock)
    for one in wrong:
        print(f"constraints-dev.txt: {one}; run `make lock`", file=sys.stderr)
    sys.exit(bool(wrong))
