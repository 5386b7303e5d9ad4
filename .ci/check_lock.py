"""Check that the locks, which `make lock` writes, pin what pyproject.toml asks for; `make lint` runs it.

In constraints-dev.txt every requirement of the extra dev has a pin within its bounds, nothing is pinned for
pyproject.toml that it does not name, and there is no address and no path, so that it works with any package index.
requirements-dev.txt has the same pins with hashes, except torch, which has a build for each platform.
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


def hash_problems(lock: str, hashed: str) -> list[str]:
    """Return the differences of a lock with hashes from one without, one per line."""
    pins = {line for line in lock.splitlines() if PIN.match(line) and not line.startswith("torch==")}
    found, verified = [], set()
    for entry in filter(None, hashed.replace(" \\\n", " ").splitlines()):
        pin, *hashes = re.split(r" +--hash=sha256:", entry)
        verified.add(pin)
        if not hashes or not all(re.fullmatch(r"[0-9a-f]{64}", one) for one in hashes):
            found.append(f"{pin!r} has no hash, or one that is not SHA-256")
    found += [f"{pin} is not verified" for pin in sorted(pins - verified)]
    return found + [f"{pin} is verified, but not pinned" for pin in sorted(verified - pins)]


if __name__ == "__main__":
    lock, hashed = ((ROOT / f"{name}-dev.txt").read_text(encoding="utf-8") for name in ("constraints", "requirements"))
    wrong = problems((ROOT / "pyproject.toml").read_text(encoding="utf-8"), lock) + hash_problems(lock, hashed)
    for one in wrong:
        print(f"{one}; run `make lock`", file=sys.stderr)
    sys.exit(bool(wrong))
