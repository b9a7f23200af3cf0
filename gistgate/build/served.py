"""A target with the decoder around it, as the command line uses them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gistgate.build.decoder import build_decoder
from gistgate.build.models import Target, load_target, parse_settings
from gistgate.decoding.decoder import Decoder
from gistgate.decoding.engines.choice import Engine


@dataclass(frozen=True)
class Served:
    """Everything a prompt needs."""

    target: Target
    decoder: Decoder

    @classmethod
    def load(
        cls, name: str, dtype: str, *, settings: Sequence[str] = (), engine: str = "eager", **parts: Any
    ) -> Served:
        """Load the target and put the decoder together; `parts` go to `build_decoder`.

        Raises:
            UserError: something cannot be loaded, or does not fit together.
        """
        Engine(engine)  # a wrong name is said before anything is loaded
        target = load_target(name, dtype)
        chosen = parse_settings(settings)
        return cls(target, build_decoder(target.model, target.tokenizer, settings=chosen, engine=engine, **parts))

    def request(self, max_new_tokens: int, stops: Sequence[str]) -> dict[str, Any]:
        """Arguments of `Decoder.generate` that all prompts share."""
        return {"max_new_tokens": max_new_tokens, "stops": list(stops), "eos_ids": self.target.eos_ids}
