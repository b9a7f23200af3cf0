"""Gates and loose rules inside vLLM's own speculative verification, as a plug-in; vLLM itself is not changed."""


def register() -> None:
    """What vLLM calls in every process that it starts; without "gistgate" in `--additional-config` nothing happens."""
    from gistgate.vllm.plugin import register

    register()
