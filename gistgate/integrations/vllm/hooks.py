"""What both of vLLM's model runners need to be hooked: who is calling, and one wrapper per function."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any

from gistgate.integrations.vllm.forcing import flat, forced
from gistgate.integrations.vllm.judge import Verdict
from gistgate.integrations.vllm.registration import MARK

CALL: ContextVar[Any] = ContextVar("gistgate_call", default=None)
"""The step of the engine that runs now; None outside, as in profiling and warm-up."""


@contextmanager
def during(call: Any) -> Iterator[None]:
    """Let the wrapped `rejection_sample` find this step."""
    token = CALL.set(call)
    try:
        yield
    finally:
        CALL.reset(token)


def wrap_once(module: Any, verify: Callable[..., Any]) -> None:
    """Replace `module.rejection_sample`, once per process: `verify(call, native, *arguments)` judges inside a step."""
    native = module.rejection_sample
    if hasattr(native, MARK):
        return

    @wraps(native)
    def rejection_sample(*arguments: Any, **options: Any) -> Any:
        call = CALL.get()
        if call is None:
            return native(*arguments, **options)
        return verify(call, native, *arguments, **options)

    setattr(rejection_sample, MARK, True)
    module.rejection_sample = rejection_sample


def run_native(verdict: Verdict, native: Callable[[], Any]) -> Any:
    """vLLM's own test, with the chosen tokens forced."""
    rows = verdict.rows
    chosen_N = flat(verdict.mask_BK, rows.places, len(rows.ids))
    with forced(rows.logits, rows.ids, chosen_N):
        return native()
