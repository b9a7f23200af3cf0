"""Gates and loose rules inside vLLM's own speculative verification, as a plug-in; vLLM itself is not changed.

vLLM calls `register` in every process that it starts. Without the key "gistgate" in `--additional-config` nothing
happens. `docs/serving.md` shows the use.
"""

from gistgate.integrations.vllm.registration import register

__all__ = ["register"]
