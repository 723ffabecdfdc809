"""llama.cpp's server in a process of its own: llama-server where that is installed, else llama-cpp-python's.

The latter computes one stream at a time: others wait for it to end. It has no `ignore_eos`; `min_tokens`
keeps it from choosing the file's end of a text, not other tokens that end one. What has no reason to differ
is left at each server's defaults. Of llama-cpp-python's two have one: a new request would end the stream that
runs (`interrupt_requests`), and logits would be computed for all of a prompt (`logits_all`).
"""

from __future__ import annotations

import contextlib
import http.client
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from first_token import free_port
from served import PATIENCE_S

SERVER = "llama-server"
PYTHON_SERVER = "llama_cpp.server"


class LlamaServed:
    """A server of a file until it is left. name: of the server. version: as it says.

    llama_python: a Python that has llama-cpp-python with what its server needs. context: positions of each
    stream. streams: at a time.
    """

    def __init__(self, llama_python: str, path: Path, *, threads: int, context: int, streams: int) -> None:
        self._port = free_port()
        server = shutil.which(SERVER)
        if server is not None:
            self.name, self.version = SERVER, _said([server, "--version"])
            command = [server, "--threads", str(threads), "--ctx-size", str(context * streams)]
            command += ["--parallel", str(streams), "--n-gpu-layers", "0", "--log-disable"]
        else:
            self.name = PYTHON_SERVER
            self.version = _said([llama_python, "-c", "import llama_cpp; print(llama_cpp.__version__)"])
            command = [llama_python, "-m", "llama_cpp.server", "--n_ctx", str(context)]
            command += ["--n_threads", str(threads), "--n_threads_batch", str(threads)]
            command += ["--interrupt_requests", "false", "--logits_all", "false", "--verbose", "false"]
        command += ["--model", str(path.resolve()), "--host", "127.0.0.1", "--port", str(self._port)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    @property
    def one_at_a_time(self) -> bool:
        """Whether streams wait for one another."""
        return self.name == PYTHON_SERVER

    def __enter__(self) -> LlamaServed:
        """Wait until it has its model."""
        deadline = time.monotonic() + PATIENCE_S
        while not self._ready():
            if self._process.poll() is not None:
                raise SystemExit(f"{self.name} ended with code {self._process.returncode}")
            if time.monotonic() > deadline:
                self.__exit__()
                raise SystemExit(f"{self.name} does not serve after {PATIENCE_S} s")
            time.sleep(0.1)
        return self

    def __exit__(self, *error: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def public(self) -> http.client.HTTPConnection:
        """Return a new connection to it."""
        return http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_S)

    def lasting(self, tokens: int) -> dict[str, Any]:
        """Return the fields of a request that make its stream last for so many tokens, as far as may be."""
        return {"min_tokens": tokens} if self.one_at_a_time else {"ignore_eos": True}

    def _ready(self) -> bool:
        with contextlib.closing(self.public()) as connection:
            try:
                connection.request("GET", "/v1/models" if self.one_at_a_time else "/health")
                return connection.getresponse().status == 200
            except ConnectionRefusedError:
                return False


def _said(command: list[str]) -> str:
    """Return the first line that a command prints, wherever it prints it."""
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True)
    return run.stdout.partition("\n")[0]
