"""The requests of an engine: what judges each, what it wishes, and how far its answer was read."""

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from torch import Tensor

from gistgate.core.rule import Rule
from gistgate.core.scopes import ALL, PROSE, SCOPES, THINKING, Reading, Scope
from gistgate.core.utils import UserError
from gistgate.vllm import KEY
from gistgate.vllm.policy import Policy

log = logging.getLogger("vllm.gistgate")

NEUTRAL: dict[str, Any] = {
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "min_tokens": 0,
    "logit_bias": {},
    "bad_words": [],
    "allowed_token_ids": [],
    "structured_outputs": None,
}
"""Sampling parameters that change which token is the most probable one, with the value at which
they do not.
"""
MOST = 2**53
"""Largest whole number of a wish: floating-point numbers hold all below it exactly."""
ARMS = ("plain", "shadow")
"""Requests that wish nothing: those that the server's rule judges, and strict ones beside."""


@dataclass
class Entry:
    """A request that was met."""

    slot: int
    """Where its counts and its last tokens stand."""
    params: Any
    """Its sampling parameters; an id that comes back with others is another request."""
    rule: Rule | None
    """What judges it; None is strict."""
    scope: Scope | None = None
    """Where the rule may judge; None everywhere."""
    arm: str | None = None
    """One of ARMS; None for a request that wishes something and is not compared."""
    is_new: bool = True
    """Until its first round was counted."""
    reading: Reading | None = None
    """How far its answer was read."""
    end: int = 0
    """Tokens of the answer in front of the draft."""
    written: dict[int, int] = field(default_factory=dict)
    """Tokens of the answer by their place, as far as met here."""

    def answer(
        self,
        prompt: Sequence[int],
        fetched: Sequence[int],
        at: int,
        read: int,
    ) -> list[int]:
        """The answer up to the draft, which follows the token `read` at the place `at` of the text.
        The model runner has `fetched`, with -1 for tokens that have still to come.
        """
        self.end = at + 1 - len(prompt)
        self.written[self.end - 1] = read
        missing = [-1] * (self.end - len(fetched))
        answer = [*fetched, *missing][: self.end]
        return [self.written.get(place, token) for place, token in enumerate(answer)]

    def settle(self, written: Tensor) -> None:
        """Note a round in which these tokens [R] were written, -1 behind the last one."""
        self.is_new = False
        if self.scope is not None:
            tokens = [token for token in written.tolist() if token >= 0]
            self.written.update(enumerate(tokens, start=self.end))


class Requests:
    """Known requests by id; those met longest ago are forgotten."""

    def __init__(
        self,
        policy: Policy,
        capacity: int,
        forget: Callable[[int], None] = lambda slot: None,
        tokenizer: Any = None,
    ) -> None:
        """`forget` is told a slot that another request gets."""
        self.policy = policy
        self.capacity = capacity
        self.forget = forget
        self.entries: dict[str, Entry] = {}
        self.scopes: dict[str, Scope] = {}
        if tokenizer is not None:
            self.scopes = {name: Scope(name, tokenizer) for name in (PROSE, THINKING)}
        self.warned = False

    def find(self, name: str, params: Any) -> Entry:
        """The entry of a request with these sampling parameters."""
        entry = self.entries.pop(name, None)
        if entry is None or entry.params is not params:
            if entry is None and len(self.entries) >= self.capacity:
                entry = self.entries.pop(next(iter(self.entries)))
            slot = len(self.entries) if entry is None else entry.slot
            self.forget(slot)
            entry = self._made(slot, name, params)
        self.entries[name] = entry  # the last one
        return entry

    def _made(
        self,
        slot: int,
        name: str,
        params: Any,
    ) -> Entry:
        rule, scope = wished(self.policy.rule, getattr(params, "extra_args", None))
        has_grammar = getattr(params, "structured_outputs", None) is not None
        if scope not in (ALL, *self.scopes) or (scope == PROSE and has_grammar):
            return Entry(slot, params, None)  # no text can be read, or a grammar writes it
        if not self._covers(params):
            rule = None
        arm = None
        if rule is self.policy.rule and scope == ALL:
            # The id decides, so that the ranks of a group agree.
            arm = ARMS[crc32(name.encode()) < self.policy.shadow * 2**32]
        if arm == "shadow":
            rule = None
        return Entry(slot, params, rule, self.scopes.get(scope), arm)

    def _covers(self, params: Any) -> bool:
        if not self.policy.covered_only:
            return True
        # Certificates are made without penalties: the most probable tokens have to be the model's
        # own.
        stops = self.policy.stops
        is_covered = stops is None or {*stops} == {*(getattr(params, "stop", None) or ())}
        for name, neutral in NEUTRAL.items():
            is_covered &= getattr(params, name, neutral) in (None, neutral)
        if not is_covered and not self.warned:
            self.warned = True
            log.warning(
                "gistgate: requests with a penalty, a bias, banned or allowed words, a least"
                " length, a grammar or other stops than %s are verified strictly, because no"
                " certificate covers them. If nobody asked for one, the model's"
                " generation_config.json does: start the server with --generation-config vllm.",
                "any" if stops is None else list(stops),
            )
        return is_covered


NONSENSE = (ValueError, TypeError, OverflowError, RecursionError)
"""What comes of what a client may send."""


def read_wish(extra: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a request wishes in its `extra_args`: an object, one as JSON, or one word. A UserError
    says that its scope does not exist.
    """
    wish = (extra or {}).get(KEY) or {}
    if wish == "strict":
        return {"strict": True}
    if wish in SCOPES:
        return {"scope": wish}
    if isinstance(wish, str):
        wish = json.loads(wish)
    if not isinstance(wish, Mapping) or not isinstance(wish.get("strict", False), bool):
        raise ValueError(f"{wish!r} is no object with 'strict', 'scope' or a setting")
    scope = wish.get("scope", ALL)
    if scope not in SCOPES:
        raise UserError(f"There is no scope '{str(scope)[:60]}'. Known: {', '.join(SCOPES)}.")
    return dict(wish)


def check_wish(extra: Mapping[str, Any] | None) -> None:
    """Refuse a request whose scope does not exist; what else is not understood is strict."""
    with suppress(*NONSENSE):
        read_wish(extra)


def wished(rule: Rule | None, extra: Mapping[str, Any] | None) -> tuple[Rule | None, str]:
    """The server's rule, a stricter one, or None (strict, also for nonsense), and the scope that a
    request wishes.
    """
    try:
        wish = read_wish(extra)
        scope = wish.pop("scope", ALL)
        if wish.pop("strict", False):
            return None, scope
        return stricter(rule, wish), scope
    except (UserError, *NONSENSE) as error:
        log.warning(
            "gistgate: a request is verified strictly, because its wish was not understood (%s).",
            error,
        )
        return None, ALL


def stricter(rule: Any, wish: dict[str, Any]) -> Any:
    """The rule at the stricter of two settings, the server's and the wished one; ValueError says
    what is no setting.
    """
    if not wish:
        return rule
    knob = rule.knob
    if knob is None or set(wish) != {knob}:
        raise ValueError(f"the only setting that a request can change is '{knob}'")
    value = wish[knob]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_too_large = isinstance(value, int) and abs(value) > MOST  # torch compares no tensor with it
    if not is_number or is_too_large or math.isnan(value):
        raise ValueError(f"'{knob}' is {value!r}, which is no number or which is too large")
    strictest = min if rule.looser == "up" else max
    return rule.changed(**{knob: strictest(value, getattr(rule, knob))})
