"""Tasks whose answers are programs: unit tests decide, and whoever loads such a task has to allow
it first.

lm-eval's own `code_eval` comes from the hub and forks this process; here programs run with limits
in processes of their own. The limits stop accidents and are no prison (SECURITY.md): use a
container against harm.
"""

import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from math import comb
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from gistgate.core.utils import UserError, replaced

CHILD = """
import os, resource, sys
from types import ModuleType

secret, program = sys.stdin.buffer.readline(), sys.stdin.buffer.read()
channel, nowhere = os.dup(1), os.open(os.devnull, os.O_RDWR)
for stream in (0, 1, 2):
    os.dup2(nowhere, stream)
seconds, memory, size = map(int, sys.argv[1:])
limits = {"CPU": seconds, "AS": memory << 20, "FSIZE": size << 20}
limits |= {"NPROC": 0, "NOFILE": 64, "CORE": 0}
sys.argv = ["program"]
for name, most in limits.items():
    kind = getattr(resource, f"RLIMIT_{name}", None)
    if kind is not None:
        hard = resource.getrlimit(kind)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        try:
            resource.setrlimit(kind, (most, most))
        except (OSError, ValueError):
            continue  # macOS refuses a limit of memory
# Not `__main__`: what a program does when it is started by hand is no part of the answer.
module = sys.modules["program"] = ModuleType("program")
try:
    exec(compile(program, "program", "exec", dont_inherit=True), module.__dict__)
except BaseException:  # whatever it is, sys.exit included, the program has not run to its end
    os._exit(1)
os.write(channel, secret)
os._exit(0)
"""
"""The process of one program. It writes the secret from its first line of input if and only if the
program runs to its end; leaving early says nothing."""
ENVIRONMENT = {"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"}
"""The whole environment: one order of sets, so that equal programs get equal verdicts, and no
threads of numpy."""
FLAGS = ("-s", "-P", "-B", "-X", "utf8")
"""Isolated as by -I, which would ignore the seed of hashes: no user's packages, no folder on the
path."""
SECONDS = 5
"""Processor time of a program."""
MEMORY_MB = 1024
"""Address space of a program, with that of the interpreter."""
FILE_MB = 10
"""The largest file that a program may write. Further processes are refused as well, unless the user
is root."""
PATIENCE = 6
"""Wall-clock time until a process is ended, in multiples of its processor time: programs may
sleep."""


@lru_cache(maxsize=20_000)
def runs(program: str) -> bool:
    """Whether the program runs to its end without an exception, in an empty folder; equal programs
    run once.
    """
    secret = secrets.token_hex(16).encode() + b"\n"
    limits = [str(limit) for limit in (SECONDS, MEMORY_MB, FILE_MB)]
    with TemporaryDirectory(prefix="gistgate-program-", ignore_cleanup_errors=True) as folder:
        process = subprocess.Popen(
            [sys.executable, *FLAGS, "-c", CHILD, *limits],
            cwd=folder,
            env=ENVIRONMENT,
            start_new_session=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        output = b""
        try:
            with suppress(subprocess.TimeoutExpired):
                text = secret + program.encode(errors="replace")
                output, _ = process.communicate(text, PATIENCE * SECONDS)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with all that it started
            process.communicate()
    return output == secret


FENCE = "```"
FENCED = re.compile(r"```([^\n`]*)\n(.*?)(?:```|\Z)", re.DOTALL)
"""A block of code: its language, and its lines."""
EXPANDED = {"pass_at_k": "pass@1"}
"""Names of metrics in a task's file, and in lm-eval's results where these differ."""


def check_allowed(name: str, unsafe: bool, allowed: bool) -> None:
    """Refuse to run programs that a model writes unless that was allowed."""
    if unsafe and not allowed:
        raise UserError(
            f"The task '{name}' runs programs that the model writes. Allow it: `allow_code: true`"
            " or --allow-code."
        )


def process_results(doc: dict[str, Any], results: Sequence[str]) -> dict[str, float]:
    """The metric of tasks such as data/tasks/python-functions.yaml: 1 if the answer passes the
    document's tests.

    A document has `prompt`, a request in words or the head of a function; `tests`, statements that
    raise where an answer is wrong; and `entry_point`, the name of the function.
    """
    return {"tests_passed": float(runs(f"{program_of(doc, results[0])}\n{doc['tests']}\n"))}


def program_of(doc: dict[str, Any], answer: str) -> str:
    """The program of an answer: a whole function, or the rest of one whose head the prompt is."""
    code = code_of(answer)
    head = doc["prompt"]
    signature = f"def {doc['entry_point']}("
    if signature not in head:  # a request in words
        return code
    if signature in code:  # whole, behind the head, which may import names that it uses
        return f"{head.rstrip()}\n    pass\n\n{code}"
    return f"{head}{code}"


def code_of(answer: str) -> str:
    """The first block of code; all of an answer without one, or what precedes the end of one that
    the prompt began.
    """
    before, _, _ = answer.partition(FENCE)
    block = FENCED.search(answer)
    if block is None:
        return before
    has_language = bool(block[1].strip())
    is_end = bool(before.strip()) and answer.count(FENCE) % 2 == 1 and not has_language
    return before if is_end else block[2]


def code_eval(
    references: Sequence[str],
    predictions: Sequence[Sequence[str]],
    k: Sequence[int] = (1, 10, 100),
    **_: Any,
) -> tuple[dict[str, float], dict[Any, Any]]:
    """The metric of this name: means over the tasks of `pass_at` for every k that all of them have
    programs for.
    """
    passed = []
    for tests, programs in zip(references, predictions, strict=True):
        passed.append([runs(f"{program}\n{tests}\n") for program in programs])
    fewest = min(map(len, passed))
    means = {}
    for number in k:
        if number <= fewest:
            chances = [pass_at(number, verdicts) for verdicts in passed]
            means[f"pass@{number}"] = sum(chances) / len(chances)
    return means, {}


def pass_at(k: int, verdicts: Sequence[bool]) -> float:
    """The chance that one of k programs passes that are drawn without replacement (arXiv
    2107.03374).
    """
    n = len(verdicts)
    return 1 - comb(n - sum(verdicts), k) / comb(n, k)


@contextmanager
def own_code_eval() -> Iterator[None]:
    """While the context is open, `evaluate.load("code_eval")` gives our own, without the hub."""
    import evaluate  # type: ignore[import-untyped]

    usual = evaluate.load

    def load(path: str, *arguments: Any, **named: Any) -> Any:
        if path == "code_eval":
            return SimpleNamespace(compute=code_eval)
        return usual(path, *arguments, **named)

    with replaced(evaluate, "load", load):
        yield
