"""Tasks whose answers are programs: unit tests decide, and whoever loads such a task has to allow it first.

lm-eval marks these tasks by `unsafe_code: true`. Its own metric `code_eval` comes from the hub and runs programs in
forks of this process; here the same name runs them with limits in processes of their own
(`gistgate.integrations.programs`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import comb
from typing import Any

from gistgate.errors import UserError
from gistgate.integrations.lm_eval.prompting import Document
from gistgate.integrations.programs.runner import runs

NEEDED = ("prompt", "tests", "entry_point")
"""What a document has: a request in words or the head of a function, statements that raise where an answer is wrong,
and the name of the function."""
FENCE = "```"
FENCED = re.compile(r"```([^\n`]*)\n(.*?)(?:```|\Z)", re.DOTALL)
"""A block of code: its language, whatever that is, and its lines."""
EXPANDED = {"pass_at_k": "pass@1"}
"""Names of metrics in a task's file, and in lm-eval's results where these differ."""


def check_allowed(name: str, unsafe: bool, allowed: bool) -> None:
    """Refuse to run programs that a model writes unless that was allowed.

    Raises:
        UserError: how to allow it.
    """
    if unsafe and not allowed:
        raise UserError(
            f"The task '{name}' runs programs that the model writes, each in a process of its own with limits, but not "
            "in a container. Allow it by `allow_code: true` in params.yaml, or by --allow-code on the command line."
        )


def process_results(doc: Document, results: Sequence[str]) -> dict[str, float]:
    """The metric of tasks such as data/tasks/python-functions.yaml: 1 if the answer passes the document's tests."""
    missing = [name for name in NEEDED if not isinstance(doc.get(name), str)]
    if missing:
        raise UserError(f"A document of this task has no text '{missing[0]}'. Every line needs {', '.join(NEEDED)}.")
    return {"tests_passed": float(runs(f"{program_of(doc, results[0])}\n{doc['tests']}\n"))}


def program_of(doc: Document, answer: str) -> str:
    """The program of an answer: a whole function, or the rest of one whose head the prompt is."""
    code, head, name = code_of(answer), doc["prompt"], f"def {doc['entry_point']}("
    if name not in head:  # a request in words
        return code
    # The head stays in front of a whole function, because it may import names that the function uses.
    return f"{head.rstrip()}\n    pass\n\n{code}" if name in code else f"{head}{code}"


def code_of(answer: str) -> str:
    """The first block of code; all of an answer without one, or what precedes the end of one that the prompt began."""
    before, fence, _ = answer.partition(FENCE)
    block = FENCED.search(answer)
    ends = bool(before.strip()) and answer.count(FENCE) % 2 == 1 and not (block and block[1].strip())
    return before if not fence or ends or block is None else block[2]


class CodeEval:
    """The metric `code_eval` of Hugging Face's evaluate, with its arguments and results."""

    def compute(
        self, references: Sequence[str], predictions: Sequence[Sequence[str]], k: Sequence[int] = (1, 10, 100), **_: Any
    ) -> tuple[dict[str, float], dict[Any, Any]]:
        """Means over the tasks of `pass_at` for every k that all of them have programs for, and no further details."""
        passed = [
            [runs(f"{program}\n{tests}\n") for program in programs]
            for tests, programs in zip(references, predictions, strict=True)
        ]
        able = [most for most in k if most <= min(map(len, passed))]
        return {f"pass@{most}": sum(pass_at(most, one) for one in passed) / len(passed) for most in able}, {}


def pass_at(k: int, passed: Sequence[bool]) -> float:
    """The chance that one of k programs passes that are drawn from these without replacement (arXiv 2107.03374)."""
    return 1 - comb(len(passed) - sum(passed), k) / comb(len(passed), k)


@contextmanager
def own_code_eval() -> Iterator[None]:
    """While the context is open, `evaluate.load("code_eval")` gives CodeEval, without the hub."""
    import evaluate  # type: ignore[import-untyped]

    usual = evaluate.load

    def load(path: str, *arguments: Any, **named: Any) -> Any:
        return CodeEval() if path == "code_eval" else usual(path, *arguments, **named)

    evaluate.load = load
    try:
        yield
    finally:
        evaluate.load = usual
