"""Gates and loose rules inside vLLM's own speculative verification, as a plug-in; vLLM itself is
not changed.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial, wraps
from importlib import import_module
from inspect import signature
from typing import Any

from gistgate.core.utils import UserError

KEY = "gistgate"
"""Key of our configuration in `--additional-config`, and of a request's wishes in its
`extra_args`."""
MARK = "_gistgate"
"""Attribute of a function that is wrapped already."""


def register() -> None:
    """What vLLM calls in every process that it starts; without "gistgate" in `--additional-config`
    nothing happens.
    """
    wrapper = import_module("vllm.v1.worker.worker_base").WorkerWrapperBase
    native = wrapper.init_device
    if hasattr(native, MARK):
        return
    from gistgate.vllm.metrics import collect

    collect()

    @wraps(native)
    def init_device(self: Any) -> None:
        native(self)
        configured = self.vllm_config.additional_config
        if isinstance(configured, dict) and KEY in configured:
            from gistgate.vllm.plugin import install

            install(self.worker, self.vllm_config, configured[KEY])

    setattr(init_device, MARK, True)
    wrapper.init_device = init_device
    processor = import_module("vllm.v1.engine.input_processor").InputProcessor
    processor._validate_params = refusing(processor._validate_params)


def refusing(native: Any) -> Any:
    """The front end's check of a request, which refuses a scope that does not exist: servers answer
    with status 400.
    """

    def validate(self: Any, params: Any, *more: Any) -> Any:
        if KEY in (self.vllm_config.additional_config or {}):
            from gistgate.vllm.requests import check_wish

            try:
                check_wish(getattr(params, "extra_args", None))
            except UserError as error:
                refusal = import_module("vllm.exceptions").VLLMValidationError
                raise refusal(str(error), parameter="vllm_xargs") from error
        return native(self, params, *more)

    return validate


CALL: ContextVar[Any] = ContextVar("gistgate_call", default=None)
"""The step of the engine that runs now; None outside, as in profiling and warm-up."""


@contextmanager
def during(call: Any) -> Iterator[None]:
    """Let the replaced `rejection_sample` find this step."""
    token = CALL.set(call)
    try:
        yield
    finally:
        CALL.reset(token)


def wrap_once(module: Any, verify: Callable[..., Any]) -> None:
    """Replace `module.rejection_sample`, once per process: `verify(call, native, **parameters)`
    judges inside a step, and calls `native` without arguments.
    """
    native = module.rejection_sample
    if hasattr(native, MARK):
        return
    names = [*signature(native).parameters]
    parameters = signature(verify).parameters.values()
    read = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    missing = [name for name in read if name not in names]
    if missing:
        raise UserError(
            f"gistgate cannot hook this vLLM: rejection_sample should have {', '.join(missing)},"
            f" but has {', '.join(names)}. Install a version that gistgate was tested with."
        )

    @wraps(native)
    def rejection_sample(*arguments: Any, **options: Any) -> Any:
        unchanged = partial(native, *arguments, **options)
        call = CALL.get()
        if call is None:
            return unchanged()
        return verify(call, unchanged, **dict(zip(names, arguments)), **options)

    setattr(rejection_sample, MARK, True)
    module.rejection_sample = rejection_sample
