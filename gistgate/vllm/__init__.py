"""Gates and loose rules inside vLLM's own speculative verification, as a plug-in; vLLM itself is not changed."""

from functools import wraps
from importlib import import_module
from typing import Any

KEY = "gistgate"  # key of our configuration in `--additional-config`, and of a request's wishes in its `extra_args`
MARK = "_gistgate"  # attribute of a function that is wrapped already


def register() -> None:
    """What vLLM calls in every process that it starts; without "gistgate" in `--additional-config` nothing happens."""
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
    refuse_wishes(import_module("vllm.v1.engine.input_processor").InputProcessor)


def refuse_wishes(processor: Any) -> None:
    """Let the front end refuse a request whose scope does not exist; its server answers with status 400."""
    native = processor._validate_params

    @wraps(native)
    def validate(self: Any, params: Any, *more: Any) -> Any:
        if KEY in (self.vllm_config.additional_config or {}):
            from gistgate.core.utils import UserError
            from gistgate.vllm.judge import check_wish

            try:
                check_wish(getattr(params, "extra_args", None))
            except UserError as error:
                refused = import_module("vllm.exceptions").VLLMValidationError
                raise refused(str(error), parameter="vllm_xargs") from error
        return native(self, params, *more)

    processor._validate_params = validate
