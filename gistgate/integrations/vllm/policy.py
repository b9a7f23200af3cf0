"""From a server's configuration to the rule that judges, checked against the models that are served."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from gistgate.certificates.holds import files_behind, load_proof
from gistgate.errors import UserError
from gistgate.integrations.vllm.identity import check_gate, check_proof
from gistgate.integrations.vllm.served import Served
from gistgate.integrations.vllm.settings import Settings
from gistgate.rules import make_rule
from gistgate.rules.base import Rule

log = logging.getLogger("vllm.gistgate")

GREEDY = "greedy"
SERVED_RULES = {
    "autojudge": GREEDY, "judge": GREEDY, "fly": GREEDY, "trt-relaxed": GREEDY,
    "csd": "all", "prob": "all", "prob-ratio": "all", "top-k": "all", "typical": "all", "ensemble": "all",
}  # fmt: skip
"""Rules that can run here, and the requests that they judge. The others need another reading, the whole distribution of
the drafter, or decisions that vLLM's kernel does not show. Sampled requests stay native where a rule says "greedy":
gates were trained on greedy texts, and FLy needs the native verdict on later tokens."""


@dataclass(frozen=True)
class Policy:
    """What may be accepted loosely; without a rule, nothing."""

    rule: Rule | None = None
    gate: Any = None
    source: str = "strict"
    """Where the setting comes from, for people."""
    sampled: bool = False
    """Whether sampled requests are judged too."""
    covered_only: bool = False
    """Whether the setting comes from a certificate, so that requests which it cannot cover are strict."""


def make_policy(settings: Settings, served: Served) -> Policy:
    """The policy of a configuration.

    Raises:
        UserError: a rule that cannot run here, or a gate or certificate that does not belong to these models.
    """
    if settings.strict:
        return Policy()
    if served.rounded and (settings.gate is not None or settings.certificate is not None):
        raise UserError(
            "gistgate: this engine rounds weights or its cache when it loads them (quantization, kv-cache-dtype), so "
            "that a gate sees other states and no certificate holds. Serve them as they are, or name a rule alone."
        )
    gate = load_gate(settings, served)
    name, values, source, sampled = choose(settings, served, gate)
    rule = make_rule(name, **values)
    check_rule(rule, gate, served)
    return Policy(rule, gate, source, sampled and SERVED_RULES[rule.id] == "all", covered_only=not sampled)


def choose(settings: Settings, served: Served, gate: Any) -> tuple[str, dict[str, Any], str, bool]:
    """Rule id, its settings, where they come from, and whether sampled requests may be judged."""
    if settings.certificate is not None:
        proof = load_proof(settings.certificate)
        point = proof.operating_point(settings.budget)
        files = {"rule_data": files_behind(point.settings)} if "rule_data" in proof.scope else {}
        check_proof(proof, served, gate, block=served.block, **files)
        return proof.rule, dict(point.settings), f"certificate for {100 * point.budget:g} %", False
    name, values = settings.rule or "autojudge", dict(settings.settings)
    if name != "autojudge" or gate is None or "risk" in values:
        return name, values, "explicit setting", True
    point = gate.operating_point(settings.budget, served.drafter, name)
    check_proof(gate.proof, served, gate)
    source = f"operating point for {100 * point.budget:g} %"
    broken = gate.proof.mismatch(block=served.block)
    if broken:
        log.warning("gistgate: %s", broken)
        source = f"uncertified {source}"
    return name, {**values, **point.settings}, source, False


def load_gate(settings: Settings, served: Served) -> Any:
    """The gate of the configuration, checked; None without one."""
    if settings.gate is None:
        return None
    from gistgate.gates.gate import Gate

    gate = Gate.load(settings.gate)
    check_gate(gate, served)
    return gate


def check_rule(rule: Rule, gate: Any, served: Served) -> None:
    """Refuse what cannot be judged inside vLLM.

    Raises:
        UserError: why, and what to take instead.
    """
    if rule.id not in SERVED_RULES:
        raise UserError(f"The rule '{rule.id}' cannot run inside vLLM. Take one of: {', '.join(sorted(SERVED_RULES))}.")
    if not rule.superset:
        raise UserError(f"{rule.id}: inside vLLM a rule only adds to the strict test. Leave 'superset' at true.")
    if "gate" in rule.needs and gate is None:
        raise UserError(f'{rule.id} judges by a gate, and none was given. Add "gate": a folder.')
    if "q" in rule.needs and not served.probabilistic:
        raise UserError(
            f"{rule.id} needs draft probabilities. Set draft_sample_method to 'probabilistic' in the speculative "
            "config, with a drafter that has a model."
        )
    if getattr(rule, "scope", "all") == "think":
        raise UserError(f"{rule.id}: think markers cannot be followed inside vLLM. Set scope to 'all'.")
    if getattr(rule, "table", "frozen") == "online":
        raise UserError("csd: an online table would let answers depend on other users. Set table to 'frozen'.")
    if rule.id == "fly" and getattr(rule, "strict_window", True) and served.num_draft <= getattr(rule, "window", 0):
        raise UserError(
            f"fly: a window of {getattr(rule, 'window', 0)} does not fit into {served.num_draft} drafted tokens. Draft "
            "more tokens, or shorten the window."
        )
