"""Gates and loose rules inside vLLM's own speculative verification, as a plug-in; vLLM itself is
not changed.
"""

from functools import wraps
from importlib import import_module
from typing import Any

# key of our configuration in `--additional-config`, and of a request's wishes in its `extra_args`
KEY = "gistgate"
MARK = "_gistgate"  # attribute of a function that is wrapped already


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
            from gistgate.vllm.judge import refusal

            if sentence := refusal(getattr(params, "extra_args", None)):
                raise import_module("vllm.exceptions").VLLMValidationError(
                    sentence, parameter="vllm_xargs"
                )
        return native(self, params, *more)

    return validate
