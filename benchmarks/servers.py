"""vLLM servers on this machine, each with its own configuration, for benchmarks and for tests."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any
from urllib.error import URLError
from urllib.request import urlopen

from gistgate.errors import UserError

if TYPE_CHECKING:
    from pipeline.pairs.source import PairSource  # the environment of vLLM need not have what it reads files with

START, STOP = 600, 60
"""Longest wait for a server to answer, and to end when it is told to, in seconds."""
MODEL = "target"
"""Name under which every server knows its model."""


@dataclass(frozen=True)
class Configuration:
    """How one server is started."""

    target: Path
    """Folder of the target."""
    speculation: Mapping[str, Any] | None = None
    """vLLM's speculative configuration; None decodes plainly."""
    gistgate: Mapping[str, Any] | None = None
    """Configuration of the plug-in; None leaves it out."""
    dtype: str = "float32"
    python: str = sys.executable
    """Interpreter of an environment with vLLM and this package."""
    options: Sequence[str] = field(default_factory=list)
    """Further options of vLLM's server."""

    def command(self, port: int) -> list[str]:
        """The command that serves it on a port of this machine alone."""
        words = [self.python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(self.target)]
        words += ["--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(port), "--dtype", self.dtype]
        if self.speculation is not None:
            words += ["--speculative-config", json.dumps(dict(self.speculation))]
        if self.gistgate is not None:
            words += ["--additional-config", json.dumps({"gistgate": dict(self.gistgate)})]
        return [*words, *self.options]

    def described(self) -> dict[str, Any]:
        """What a result says of the server."""
        parts = {"speculation": self.speculation, "gistgate": self.gistgate, "dtype": self.dtype}
        return {**parts, "options": list(self.options)}


def server_of(source: PairSource, block: int, python: str, options: Sequence[str]) -> Configuration:
    """A server without the plug-in that drafts with the pair's own draft.

    Raises:
        UserError: the pair has none.
    """
    if source.draft is None:
        raise UserError(
            "The pair of this run has no draft model, which the server would draft with. Choose a pair with a draft "
            "model."
        )
    speculation = {"method": "draft_model", "model": source.draft.model, "num_speculative_tokens": block}
    return Configuration(Path(source.target.model), speculation, None, source.target.dtype, python, options)


@contextmanager
def serving(configuration: Configuration, log: Path) -> Iterator[str]:
    """The address of a server, as long as it is needed.

    Raises:
        UserError: it ends or does not answer in time; its log says why.
    """
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    env = {"VLLM_CPU_KVCACHE_SPACE": "1", **os.environ}  # GiB; by itself a server wants most of the machine's memory
    with log.open("w") as out:
        process = subprocess.Popen(configuration.command(port), stdout=out, stderr=subprocess.STDOUT, env=env)
        try:
            until_ready(process, address, log)
            yield address
        finally:
            stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a server; one that does not end in time is killed."""
    process.terminate()
    try:
        process.wait(STOP)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def until_ready(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    """Wait until a server answers.

    Raises:
        UserError: it ends or does not answer in time; its log says why.
    """
    until = monotonic() + START
    while not answers(address):
        if process.poll() is not None or monotonic() > until:
            raise UserError(f"The server did not start. Its log is {log} and ends with: {log.read_text()[-2000:]}")
        sleep(1)


def free_port() -> int:
    """A port that nobody uses at this moment."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def answers(address: str) -> bool:
    """Whether the server is ready."""
    try:
        with urlopen(f"{address}/health", timeout=2):
            return True
    except (URLError, OSError):
        return False
