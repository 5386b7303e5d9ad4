"""A Milvus server for tests: started when the first test of a process needs one, stopped when the process ends.

The package ``milvus`` holds the server. It needs old versions of other packages, so it is in an environment of its own,
which ``make milvus`` creates. Without it, or without pymilvus, tests are skipped; with ``CI`` in the environment, they
fail.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path

import pytest

PYTHON = Path(os.environ.get("MILVUS_PYTHON", Path(__file__).parents[1] / ".cache" / "milvus" / "bin" / "python"))
START = """
import os, socket, sys
from pathlib import Path
from milvus import MilvusServer, MilvusServerConfig, _initialize_data_files

def try_bind_port(self, port):
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # its own port, after it was killed
    try:
        sock.bind(("127.0.0.1", port))
    except OSError:
        return None
    return sock

MilvusServerConfig.try_bind_port = try_bind_port
server = MilvusServer(data_dir=sys.argv[1], proxy_port=int(sys.argv[2]))
server.config.resolve()
folder = Path(server.config.base_data_dir)
_initialize_data_files(folder)
metrics, free = server.config.resolve_port(9091)
free.close()
peers, free = server.config.resolve_port(12380)
free.close()
clients = server.config.get("etcd_port")
etcd, config = folder / "configs" / "etcd.yaml", folder / "configs" / "milvus.yaml"
etcd.write_text(f'''name: default
listen-client-urls: http://127.0.0.1:{clients}
advertise-client-urls: http://127.0.0.1:{clients}
listen-peer-urls: http://127.0.0.1:{peers}
initial-advertise-peer-urls: http://127.0.0.1:{peers}
initial-cluster: default=http://127.0.0.1:{peers}
''')  # its own ports, so that another server of this machine does not have them
config.write_text(config.read_text().replace("etcd:", f"etcd:\\n  config:\\n    path: {etcd}", 1))
program = server.get_milvus_executable_path()
os.environ.update(DEPLOY_MODE="STANDALONE", METRICS_PORT=str(metrics), MILVUS_RUN_DIR=f"{folder}/run",
                  LD_LIBRARY_PATH=os.path.dirname(program))
os.chdir(folder)
os.execv(program, [program, "run", "standalone"])
"""


class MilvusServer:
    """A server with a folder of its own, which may be killed and started again."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="mh-milvus-")) if folder is None else folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        atexit.register(self.close)
        self.start()

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, seconds: float = 180) -> None:
        """Start it and wait until it answers."""
        with (self.folder / "output").open("ab") as output:
            self.process = subprocess.Popen(
                [PYTHON, "-c", START, self.folder, str(self.port)], stdout=output, stderr=output
            )
        end = time.monotonic() + seconds
        while not self.answers():
            assert self.process.poll() is None, f"Milvus ended: {self.output()}"
            assert time.monotonic() < end, f"Milvus did not start in {seconds} s: {self.output()}"

    def answers(self) -> bool:
        """Wait a moment and return whether the server answers."""
        from pymilvus import MilvusClient, MilvusException

        time.sleep(0.2)
        try:
            client = MilvusClient(self.uri, timeout=2)
            client.list_collections()
            client.close()
        except MilvusException:
            return False
        return True

    def output(self) -> str:
        return (self.folder / "output").read_text(errors="replace")[-2000:]

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


@cache
def shared_server() -> MilvusServer:
    import logging

    import pymilvus  # noqa: F401  (a reason to skip)

    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
    if not PYTHON.exists():
        raise OSError(f"no Milvus server: `make milvus` installs one ({PYTHON} is missing)")
    return MilvusServer()


@pytest.fixture(scope="session")
def milvus():
    """The server that the tests of this process share; a test that kills it starts it again."""
    try:
        return shared_server()
    except (OSError, ImportError) as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
