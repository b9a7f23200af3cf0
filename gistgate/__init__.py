"""GistGate: speculative decoding that keeps a draft token when it keeps the meaning.

    from gistgate import Decoder, Gate, ModelDrafter, make_rule

Names are fetched from their modules when they are first used, so that importing the package costs
nothing.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

EXPORTS = {
    "Block": "gistgate.core.block",
    "Reason": "gistgate.core.block",
    "Sampling": "gistgate.core.block",
    "Decoder": "gistgate.build",
    "Generation": "gistgate.core.request",
    "Statistics": "gistgate.core.request",
    "decode_all": "gistgate.core.batches",
    "DRAFTERS": "gistgate.drafters",
    "ModelDrafter": "gistgate.drafters.model",
    "PromptLookup": "gistgate.drafters.text",
    "Gate": "gistgate.gate",
    "RULES": "gistgate.rules",
    "make_rule": "gistgate.rules",
    "UserError": "gistgate.core.utils",
}
"""Public name -> module that defines it, or for `Decoder` also names the engines."""


def __getattr__(name: str) -> Any:
    if name not in EXPORTS:
        raise AttributeError(f"module 'gistgate' has no attribute '{name}'")
    return getattr(import_module(EXPORTS[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *EXPORTS])
