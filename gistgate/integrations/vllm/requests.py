"""What each request asked for, and a slot for what is counted and remembered about it."""

from __future__ import annotations

import json
import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gistgate.errors import UserError
from gistgate.integrations.vllm.registration import KEY
from gistgate.rules.base import Rule

log = logging.getLogger("vllm.gistgate")

NEUTRAL: dict[str, Any] = {
    "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "min_tokens": 0, "logit_bias": {},
    "bad_words": [], "allowed_token_ids": [], "structured_outputs": None,
}  # fmt: skip
"""Sampling parameters that change which token is the most probable one, with the value at which they do not."""
MOST = 2**53
"""Largest whole number of a wish: floating-point numbers hold all below it exactly."""
SPARE = 1024
"""Requests whose counts are kept after they have ended."""


@dataclass
class Entry:
    """A request that was met."""

    slot: int
    params: Any
    """Its sampling parameters; an id that comes back with others is another request."""
    rule: Rule | None
    """What judges it; None is strict."""


class Requests:
    """Known requests by id; those met longest ago are forgotten."""

    def __init__(
        self,
        rule: Rule,
        capacity: int,
        forget: Callable[[int], None] = lambda slot: None,
        covered_only: bool = False,
    ) -> None:
        """`covered_only` verifies strictly what a certificate cannot cover."""
        self.rule, self.covered_only, self.warned = rule, covered_only, False
        self.entries: OrderedDict[str, Entry] = OrderedDict()
        self.capacity = capacity
        self.forget = forget
        """Called with a slot that is given to another request."""

    def find(self, ids: Sequence[str], params: Callable[[str], Any]) -> list[Entry]:
        """The entries of a batch."""
        return [self._find(name, params(name)) for name in ids]

    def _find(self, name: str, params: Any) -> Entry:
        entry = self.entries.get(name)
        if entry is None or entry.params is not params:
            is_covered = not self.covered_only or leaves_logits(params)
            if not is_covered and not self.warned:
                self.warned = True
                log.warning(
                    "gistgate: requests with a penalty, a bias, banned or allowed words, a least length or a grammar "
                    "are verified strictly, because no certificate covers them. If nobody asked for one, the model's "
                    "generation_config.json does: start the server with --generation-config vllm."
                )
            rule = wished_rule(self.rule, getattr(params, "extra_args", None)) if is_covered else None
            entry = Entry(self._slot(name), params, rule)
            self.entries[name] = entry
        self.entries.move_to_end(name)
        return entry

    def _slot(self, name: str) -> int:
        if name in self.entries:
            slot = self.entries.pop(name).slot
        elif len(self.entries) < self.capacity:
            slot = len(self.entries)
        else:
            slot = self.entries.popitem(last=False)[1].slot
        self.forget(slot)
        return slot


def leaves_logits(params: Any) -> bool:
    """Whether a request's most probable tokens are the model's own: certificates are made without penalties."""
    return all(getattr(params, name, neutral) in (None, neutral) for name, neutral in NEUTRAL.items())


def wished_rule(rule: Rule, extra: Mapping[str, Any] | None) -> Rule | None:
    """The server's rule, a stricter one, or None (strict), as a request wishes.

    A wish that cannot be understood is granted strictly: an answer that is too good does no harm.
    """
    wish = (extra or {}).get(KEY)
    if wish is None:
        return rule
    try:
        wish = read_wish(wish)
        if wish.pop("strict", False):
            return None
        return stricter(rule, wish)
    except (ValueError, TypeError, UserError, OverflowError, RecursionError) as error:  # whatever a client may send
        log.warning("gistgate: a request is verified strictly, because its wish was not understood (%s).", error)
        return None


def read_wish(value: Any) -> dict[str, Any]:
    """A wish as a mapping. Over HTTP only texts and numbers arrive, so it may be JSON text or the word "strict".

    Raises:
        ValueError: it is something else.
    """
    if value == "strict":
        return {"strict": True}
    wish = json.loads(value) if isinstance(value, str) else value
    if not isinstance(wish, Mapping) or not isinstance(wish.get("strict", False), bool):
        raise ValueError(f"{value!r} is no object with 'strict' or a setting")
    return dict(wish)


def stricter(rule: Rule, wish: dict[str, Any]) -> Rule:
    """The rule at the stricter of two settings: the server's and the one that is wished.

    Raises:
        ValueError: the wish names something else than the knob, or no number.
    """
    if not wish:
        return rule
    knob = rule.knob
    if knob is None or set(wish) != {knob}:
        raise ValueError(f"the only setting that a request can change is '{knob}'")
    value, current = wish[knob], getattr(rule, knob)
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise ValueError(f"'{knob}' is {value!r}, which is no number")
    if isinstance(value, int) and abs(value) > MOST:  # torch compares no tensor with it, and the engine would end
        raise ValueError(f"'{knob}' is {value!r}, which is too large")
    kept = min(value, current) if rule.looser == "up" else max(value, current)
    changed: Rule = rule.changed(**{knob: kept})
    return changed
