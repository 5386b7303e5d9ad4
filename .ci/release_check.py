"""Rehearse a release: build twice, install from the wheel alone, and use what a newcomer uses. `make release-check`.

1. Build sdist and wheel twice, which must give the same bytes, and check their contents and description.
2. With every Python that is found from 3.11 on, install the wheel with the extra photos in a fresh environment and
   run every command of README.md on generated pictures.
3. Install the wheel with each extra alone, and use what the extra is for.
4. Leave sdist, wheel and a CycloneDX list of what the extra photos installs in dist/.

Environments are made by uv, which links packages instead of copying them and runs other tools in fixed versions.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.request
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
TOOLS = {
    "twine": "twine==7.0.0",
    "check-wheel-contents": "check-wheel-contents==0.6.3",
    "cyclonedx-py": "cyclonedx-bom==7.5.0",
}
RED = (  # a red picture, as PNG
    "iVBORw0KGgoAAAANSUhEUgAAAEAAAABACAIAAAAlC+aJAAAATElEQVR42u3PQQ0AAAgEoNP+nTWCbzdoQE1+6wgICAgICAgICAgI"
    "CAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgIHBZShQF/CY4YrwAAAABJRU5ErkJggg=="
)
FOR_DEVELOPMENT = {"test", "test-all", "docs", "dev"}
FIT = """
import modalhash
from modalhash.data import generate
data = generate(n_items=60, seed=0)
modalhash.AMSH(n_bits=16, n_anchors=20).fit(data.X, data.Y)
"""
USES = {  # what each extra is for, as a line of Python
    "": FIT,
    "data": "import h5py; h5py.File('x.h5', 'w')['a'] = [[1.0]]; from modalhash.data import formats",
    "plot": "import matplotlib; from modalhash.evaluation import figures",
    "serve": "from modalhash.serve import make_app",
    "dask": "import dask.array, distributed; from modalhash.data import open_feature_files",
    "tables": "import narwhals, pyarrow, openpyxl; import modalhash.data",
    "postgres": "import modalhash.store.postgres.store",
    "tune": "import modalhash.experiments.tuning, optuna",
    "images": "from modalhash.encoders import get_encoder; get_encoder('image').encode(['red.png'])",
    "heif": "import pi_heif; from modalhash.encoders import get_encoder; get_encoder('image').encode(['red.png'])",
    "raw": "import rawpy; from modalhash.encoders import get_encoder; get_encoder('image').encode(['red.png'])",
    "photos": "from modalhash.encoders import get_encoder; get_encoder('efficientnet-lite0').encode(['red.png'])",
    "ocr": "from rapidocr import RapidOCR; import onnxruntime, modalhash.engine; RapidOCR()('red.png')",
    "semantic": "from modalhash.encoders import get_encoder; get_encoder('use').encode(['a cat'])",
    "torch": "import modalhash; modalhash.method('dcmh')",
    "minilm": "from modalhash.encoders import get_encoder; get_encoder('minilm').encode(['a cat'])",
    "hf": "import transformers; import modalhash.encoders",
    "demo": "from modalhash.data import write_openmoji; write_openmoji('emoji')",
    "milvus": "import modalhash.index.milvus",
    "telemetry": "import opentelemetry.sdk.trace, opentelemetry.exporter.otlp.proto.http; import modalhash.serve",
}


def run(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    """Run a command and return what it printed; print that and exit if it fails."""
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode:
        sys.exit(f"{done.stdout}\n{' '.join(map(str, command))}: exit code {done.returncode}")
    return done.stdout


def uv(*arguments: str | Path, cwd: Path = ROOT, env: dict[str, str] | None = None) -> str:
    return run(Path(sys.executable).parent / "uv", *arguments, cwd=cwd, env=env)


def tool(name: str, *arguments: str | Path) -> str:
    """Run a tool in an environment of its own, in the version of TOOLS."""
    return uv("tool", "run", "--quiet", "--from", TOOLS[name], name, *arguments)


def build(folder: Path) -> Path:
    """Build sdist and wheel twice, compare and check them, and return the wheel."""
    moment = run("git", "log", "-1", "--format=%ct", cwd=ROOT).strip()
    made: list[dict[str, str]] = []
    for name in ("first", "second"):
        env = {**os.environ, "SOURCE_DATE_EPOCH": moment}
        uv("build", "--quiet", "--out-dir", folder / name, ROOT, cwd=folder, env=env)
        files = sorted((folder / name).glob("modalhash-*"))
        made.append({file.name: sha256(file.read_bytes()).hexdigest() for file in files})
    if made[0] != made[1] or len(made[0]) != 2:
        sys.exit(f"two builds differ: {made}")
    for file, digest in made[0].items():
        print(f"{file}: the same bytes twice, sha256 {digest}")
    wheel, sdist = next((folder / "first").glob("*.whl")), next((folder / "first").glob("*.tar.gz"))
    tool("twine", "check", "--strict", wheel, sdist)
    tool("check-wheel-contents", wheel)
    print("the description renders, and the wheel contains the package alone")
    return wheel


def environment(folder: Path, wheel: Path, extra: str, python: str = sys.executable) -> Path:
    """Install the wheel with an extra in a fresh environment and return its folder of programs."""
    uv("venv", "--quiet", "--python", python, folder)
    scripts = folder / ("Scripts" if os.name == "nt" else "bin")
    constraints = ("--constraint", ROOT / "constraints.txt", "--constraint", ROOT / "constraints-dev.txt")
    wanted = f"{wheel}[{extra}]" if extra else str(wheel)
    uv("pip", "install", "--quiet", "--python", folder, *constraints, wanted)
    return scripts


@contextmanager
def serving(command: list[str], folder: Path, env: dict[str, str]) -> Iterator[None]:
    """Serve, wait until the service answers, and stop it."""
    with subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as service:
        try:
            for _ in range(120):
                try:
                    urllib.request.urlopen("http://127.0.0.1:8765/healthz", timeout=1).close()
                    break
                except OSError:
                    time.sleep(0.5)
            else:
                sys.exit("the service did not answer within a minute")
            yield
        finally:
            service.terminate()


def readme_commands() -> list[str]:
    """Return the commands of the README's shell blocks, without comments and without those that install or run make."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = [line for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    commands = [re.sub(r"\s+#.*", "", line).strip() for line in lines]
    return [command for command in commands if command.startswith("modalhash ")]


def try_readme(folder: Path, scripts: Path) -> None:
    run(scripts / "python", ROOT / ".ci" / "release_photos.py", cwd=folder)
    env = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    for command in readme_commands():
        started = time.monotonic()
        words = [word.strip("\"'") for word in re.findall(r"\"[^\"]*\"|'[^']*'|\S+", command)]
        words[0] = str(scripts / words[0])
        if words[1] == "serve":
            with serving([*words, "--port", "8765"], folder, env):
                pass
        else:
            run(*words, cwd=folder, env=env)
        print(f"  {command}: {time.monotonic() - started:.1f} s")


def interpreters() -> dict[str, str]:
    """Return the Pythons of PYTHONS that start on this machine, by version."""
    found = {}
    for version in PYTHONS:
        program = shutil.which(f"python{version}")
        where = [program or "", "-c", "import sys; print(sys.executable)"]
        if program and (done := subprocess.run(where, capture_output=True, text=True)).returncode == 0:
            found[version] = done.stdout.strip()
    return found


def main() -> None:
    extras = set(
        tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    )
    if missing := extras - FOR_DEVELOPMENT - set(USES):
        sys.exit(f"USES in {Path(__file__).name} has no line for the extras {sorted(missing)}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel = build(folder)
        for version, python in interpreters().items():
            print(f"Python {version}, extra photos, the README's commands:")
            work = folder / version
            work.mkdir()
            try_readme(work, environment(work / "venv", wheel, "photos", python))
            shutil.rmtree(work)
        for extra in sorted(extras - FOR_DEVELOPMENT | {""}):
            work = folder / f"extra-{extra}"
            work.mkdir()
            scripts = environment(work / "venv", wheel, extra)
            (work / "red.png").write_bytes(b64decode(RED))
            run(scripts / "python", "-W", "error::FutureWarning", "-c", USES[extra], cwd=work)
            print(f"extra {extra or '(none)'} alone: works")
            if extra == "photos":
                bill = folder / "first" / f"{wheel.stem.rsplit('-py3', 1)[0]}.cdx.json"
                options = ("--of", "JSON", "--output-reproducible", "--pyproject", ROOT / "pyproject.toml", "-o", bill)
                tool("cyclonedx-py", "environment", *options, scripts / "python")
            shutil.rmtree(work)
        shutil.rmtree(ROOT / "dist", ignore_errors=True)
        shutil.copytree(folder / "first", ROOT / "dist", ignore=shutil.ignore_patterns(".gitignore"))
        print("dist/:", *sorted(path.name for path in (ROOT / "dist").iterdir()))


if __name__ == "__main__":
    main()
