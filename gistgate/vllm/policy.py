"""From the configuration of a server to the rule that judges there, checked against the models that
are served.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from gistgate.core.files import load_tensors
from gistgate.core.identity import (
    ModelIdentity,
    check_identity,
    check_tokenizer,
    gate_hash,
    hash_of,
    model_scope,
    tokenizer_scope,
)
from gistgate.core.rule import Rule
from gistgate.core.utils import UserError, added_ids, dataclass_from
from gistgate.coverage.ask import UNKNOWN
from gistgate.coverage.certificate import Certificate, OperatingPoint, load_certificate
from gistgate.coverage.choose import GATED
from gistgate.coverage.covers import covers, joined, refusal, refuse
from gistgate.coverage.setup import Setup, files_behind, is_server
from gistgate.drafters.text import PromptLookup
from gistgate.gate import Gate
from gistgate.models.places import weight_files
from gistgate.rules import make_rule

log = logging.getLogger("vllm.gistgate")

GREEDY = "greedy"
SERVED_RULES = {
    "autojudge": GREEDY,
    "judge": GREEDY,
    "fly": GREEDY,
    "trt-relaxed": GREEDY,
    "csd": "all",
    "prob": "all",
    "prob-ratio": "all",
    "top-k": "all",
    "typical": "all",
    "ensemble": "all",
}
"""Rules that can run here, and the requests that they judge. The others need another reading, the
whole distribution of the drafter, or decisions that vLLM's kernel does not show. Sampled requests
stay native where a rule says "greedy": gates were trained on greedy texts, and FLy needs the native
verdict on later tokens."""
# Our drafter ids by vLLM's speculative methods.
DRAFTERS = {"draft_model": "model", "ngram": "lookup"}
WITHOUT_MODEL = ("ngram", "ngram_gpu", "suffix")  # methods that draft from texts
LOOKUP = (1, PromptLookup.n_max)  # shortest and longest run of tokens that our `lookup` looks for
WHOLE = ("auto", "bfloat16", "float16", "float32")  # types of a cache that is not rounded
# Ends of names of tensors in some checkpoints that are no model's parameters.
BUFFERS = (".rotary_emb.inv_freq",)


@dataclass(frozen=True)
class Settings:
    """The value of "gistgate" in `--additional-config`; all values are plain JSON."""

    rule: str | None = None  # rule id; default: "autojudge" with a gate
    settings: dict[str, Any] = field(default_factory=dict)  # settings of the rule
    gate: str | None = None  # folder of a trained gate
    # Certified loss, as a share of prompts; default: the certificate's headline.
    budget: float | None = None
    # A certificate.json or its folder; it names rule and settings for the budget.
    certificate: str | None = None
    strict: bool = False  # True: nothing lossy can run, whatever else is asked for
    # Token ids that are never accepted loosely, beside ends and added tokens.
    protected: tuple[int, ...] = ()
    # Whether a request that begins to repeat itself is verified strictly for a while.
    loop_guard: bool = True
    # Share of requests that are strict, so that the lengths of answers can be compared.
    shadow: float = 0.0
    # True: a version of vLLM is tried that the plug-in was not tested with.
    any_version: bool = False

    @property
    def asks_gate(self) -> bool:
        """Whether the certificate beside the gate names the setting."""
        by_gate = self.gate is not None and self.rule in (None, GATED)
        return by_gate and "risk" not in self.settings

    @property
    def is_certified(self) -> bool:
        """Whether a certificate names the setting, in the configuration or beside the gate."""
        return self.certificate is not None or self.asks_gate

    def __post_init__(self) -> None:
        object.__setattr__(self, "protected", tuple(self.protected))
        parts = (self.rule, self.gate, self.certificate)
        is_lossy = bool(self.settings) or (*parts, self.budget) != (None,) * 4
        names_setting = bool(self.rule or self.settings)
        check(
            {
                '"shadow" is a share of the requests. Give a number from 0 to 1.': (
                    not 0 <= self.shadow <= 1
                ),
                '"strict" stands beside a rule, a gate, a budget or a certificate. Keep one.': (
                    self.strict and is_lossy
                ),
                'name a "rule", a "gate" or a "certificate", or set "strict" to true.': (
                    not self.strict and parts == (None,) * 3
                ),
                "a certificate names rule and settings itself. Leave these keys away.": (
                    self.certificate is not None and names_setting
                ),
                "a budget is kept by a certificate, which a rule or a risk that is named does not"
                " have. Leave the budget away, or name a gate or a certificate alone.": (
                    self.budget is not None and not self.is_certified
                ),
            }
        )


def check(hindrances: Mapping[str, object], who: str = "gistgate") -> None:
    """Refuse the first sentence whose value is true."""
    for sentence, present in hindrances.items():
        if present:
            raise UserError(f"{who}: {sentence}")


def read_settings(value: Any) -> Settings:
    """The configuration in a JSON object; refuses unknown keys, values of other kinds and
    contradictions.
    """
    try:
        settings: Settings = dataclass_from(Settings, value)
    except ValueError as error:
        raise UserError(f"gistgate: the configuration cannot be used: {error}.") from error
    return settings


@dataclass(frozen=True)
class Served:
    """Target and drafter of an engine."""

    method: str  # vLLM's speculative method
    num_draft: int  # K, drafted tokens per round
    probabilistic: bool  # whether the drafter names probabilities
    target: ModelIdentity  # its name is a folder or hub id; without the fingerprint
    tokenizer: Any = None  # None where the engine has none
    eos_ids: tuple[int, ...] = ()  # ids that end an answer
    config_eos_ids: tuple[
        int, ...
    ] = ()  # ids that the model's config.json calls ends, which vLLM does not ask
    max_requests: int = 256  # requests of the largest batch
    draft: str | None = None  # folder or hub id of the draft model; None for another method
    lookup: tuple[int, int] = (
        LOOKUP  # shortest and longest run of tokens that vLLM's `ngram` looks for
    )
    rounded: bool = False  # whether the engine rounds weights or its cache when it loads them
    schedule: tuple[
        int, ...
    ] = ()  # drafted tokens at other numbers of running requests, where vLLM schedules them

    @property
    def drafter(self) -> str:
        """Our id of the drafter; vLLM's name where we have none that proposes the same."""
        if self.method == "ngram" and self.lookup != LOOKUP:
            return f"ngram of {self.lookup[0]} to {self.lookup[1]} tokens"
        return DRAFTERS.get(self.method, f"vLLM's {self.method}")

    @property
    def block(self) -> int:
        """K that a certificate has to name: of every round, or the first other one of the schedule
        but 0.
        """
        return next(
            (num for num in self.schedule if num not in (0, self.num_draft)), self.num_draft
        )

    @cached_property
    def identity(self) -> ModelIdentity:
        """The identity of the target; its weights are read from its folder on the first use."""
        return replace(self.target, fingerprint=folder_fingerprint(self.target.name))

    def setup(self, certificate: Certificate, point: OperatingPoint, gate: Any) -> Setup:
        """What decodes here at a certified point, to be compared with `certificate`."""
        setup = Setup(
            target=model_scope(self.identity),
            gate=None if gate is None else gate_hash(gate),
            rule=certificate.rule,
            settings=point.settings,
            drafter=self.drafter,
            drafting=None,  # ends of drafts and further sources are this library's own
            block=self.block,
        )
        if certificate.setup.rule_data is not UNKNOWN:
            setup = replace(setup, rule_data=files_behind(point.settings))
        if is_server(certificate.setup.engine):
            setup = replace(setup, engine=engine_id())
        if self.draft is not None:
            # vLLM chooses the draft model's dtype and rounds nothing, so only weights count.
            setup = replace(setup, draft={"fingerprint": folder_fingerprint(self.draft)})
        if self.tokenizer is not None:
            hashes: dict[str, Any] = tokenizer_scope(self.tokenizer, ("encoding", "template"))
            setup = replace(setup, ends=list(self.eos_ids), **hashes)
        return setup

    @property
    def protected(self) -> tuple[int, ...]:
        """Ids that steer the protocol: ends of text and every added token (chat, think and tool
        markers).
        """
        return tuple(sorted({*self.eos_ids, *self.config_eos_ids, *added_ids(self.tokenizer)}))


def read_served(config: Any) -> Served:
    """The facts in a `VllmConfig`."""
    from transformers import AutoTokenizer

    model = config.model_config
    speculation = config.speculative_config
    text = model.hf_config.get_text_config()
    tokenizer = None
    if not model.skip_tokenizer_init:
        tokenizer = AutoTokenizer.from_pretrained(
            model.tokenizer,
            revision=model.tokenizer_revision,
            trust_remote_code=model.trust_remote_code,
        )
    return Served(
        method=speculation.method,
        num_draft=speculation.num_speculative_tokens,
        probabilistic=speculation.draft_sample_method == "probabilistic"
        and speculation.method not in WITHOUT_MODEL,
        target=ModelIdentity(
            name=str(model.model),
            revision=None,
            architecture=text.model_type,
            hidden_size=text.hidden_size,
            num_layers=text.num_hidden_layers,
            vocabulary_size=text.vocab_size,
            dtype=str(model.dtype).removeprefix("torch."),
            fingerprint=None,
        ),
        tokenizer=tokenizer,
        eos_ids=eos_ids(model, tokenizer),
        config_eos_ids=listed(text.eos_token_id),
        max_requests=config.scheduler_config.max_num_seqs,
        draft=(
            str(speculation.draft_model_config.model)
            if speculation.method == "draft_model"
            else None
        ),
        lookup=(speculation.prompt_lookup_min or 0, speculation.prompt_lookup_max or 0),
        rounded=is_rounded(config),
        schedule=tuple(
            num for _, _, num in speculation.num_speculative_tokens_per_batch_size or ()
        ),
    )


def engine_id() -> str:
    """What the scope of a certificate calls this engine."""
    return f"vllm {import_module('vllm').__version__}"


def is_rounded(config: Any) -> bool:
    """Whether the engine rounds the target, the draft model or its cache of keys and values to
    fewer bits.
    """
    cache = getattr(config, "cache_config", None)
    dtype = str(getattr(cache, "cache_dtype", "auto")).removeprefix("torch.")
    draft = getattr(config.speculative_config, "draft_model_config", None)
    bits = [getattr(model, "quantization", None) for model in (config.model_config, draft)]
    return dtype not in WHOLE or bits != [None, None]


def eos_ids(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Every id that ends an answer: those of generation settings and tokenizer."""
    generation = model.try_get_generation_config() or {}
    ids = listed(generation.get("eos_token_id"))
    return tuple(sorted({*ids, *listed(getattr(tokenizer, "eos_token_id", None))}))


def listed(ids: Any) -> tuple[int, ...]:
    """One id, several or none, as configurations have them."""
    if isinstance(ids, list | tuple):
        return tuple(ids)
    return () if ids is None else (ids,)


def folder_fingerprint(model: str) -> str | None:
    """The hash of `gistgate.core.identity.weights_fingerprint`, read from a model folder; None for
    a hub id.
    """
    from safetensors import safe_open

    if not Path(model).is_dir():
        return None
    places: dict[str, str | Path] = {}
    for path in weight_files(model):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118
                if not name.endswith(BUFFERS):
                    places[name] = path
    parameters = (load_tensors(path, [name])[name] for name, path in sorted(places.items()))
    return hash_of(parameters) if places else None


@dataclass(frozen=True)
class Policy:
    """What may be accepted loosely; without a rule, nothing."""

    rule: Rule | None = None
    gate: Any = None
    source: str = "strict"  # where the setting comes from, for people
    sampled: bool = False  # whether sampled requests are judged too
    covered_only: bool = (
        False  # whether a certificate names the setting; requests that it cannot cover are strict
    )
    shadow: float = 0.0  # share of requests that are strict for comparison
    stops: Sequence[str] | None = (
        None  # the certified texts that end answers; None where nobody knows them
    )


def make_policy(settings: Settings, served: Served) -> Policy:
    """The policy of a configuration; refuses what cannot run here or does not belong to these
    models.
    """
    if settings.strict:
        return Policy()
    gate = None if settings.gate is None else Gate.load(settings.gate)
    if gate is not None:
        check_gate(gate, served)
    if settings.is_certified:
        if served.rounded:
            raise UserError(
                "gistgate: this engine rounds weights or its cache, so that no certificate holds."
                ' Name a rule, or a gate with a risk in "settings".'
            )
        return certified_policy(settings, served, gate)
    rule = make_rule(settings.rule or GATED, **settings.settings)
    check_rule(rule, gate, served)
    sampled = SERVED_RULES[rule.id] == "all"
    return Policy(rule, gate, "explicit setting", sampled, shadow=settings.shadow)


def certified_policy(settings: Settings, served: Served, gate: Any) -> Policy:
    """The policy that a certificate names, which stands in the configuration or beside the gate.

    Refuses what the certificate does not cover; beside a gate another K is a warning.
    """
    if settings.certificate is not None:
        certificate = load_certificate(settings.certificate)
        point = certificate.operating_point(settings.budget)
        source = "certificate"
    else:
        point = gate.operating_point(settings.budget)
        certificate = gate.certificate
        source = "operating point"
    source = f"{source} for {100 * point.budget:g} %"
    differences = covers(certificate, served.setup(certificate, point, gate))
    if settings.certificate is None and [each.kind for each in differences] == ["block"]:
        log.warning("gistgate: %s", refusal(joined(differences)))
        source = f"uncertified {source}"
    else:
        refuse(differences)
    rule = make_rule(certificate.rule, **{**settings.settings, **point.settings})
    check_rule(rule, gate, served)
    stops = certificate.scope.get("stops")
    return Policy(rule, gate, source, False, True, settings.shadow, stops)


def check_gate(gate: Any, served: Served) -> None:
    """Refuse a gate of another target or tokenizer, and one whose inputs vLLM does not show; warn
    of another dtype.
    """
    expected = gate.config.target
    target = served.identity
    check_identity("target", expected, target)
    if target.fingerprint is None:
        log.warning(
            "gistgate: '%s' is no folder, so its weights were not compared with the gate's.",
            target.name,
        )
    if served.tokenizer is not None:
        check_tokenizer(gate.config.tokenizer, served.tokenizer)
    if target.dtype != expected.dtype:
        sentence = "gistgate: the gate was trained on states in %s, and vLLM computes in %s."
        log.warning(sentence, expected.dtype, target.dtype)
    if served.rounded:
        log.warning("gistgate: the gate was trained on states of weights that were not rounded.")
    if gate.layers - {"post"}:
        raise UserError(
            f"The gate reads the layers {', '.join(sorted(gate.layers))}. vLLM shows 'h_tok:post'"
            " and 'h_pred:post'."
        )
    if gate.wants_q:
        raise UserError(
            "The gate reads draft probabilities, which vLLM does not show. Train one without"
            " 'draft'."
        )


def check_rule(rule: Rule, gate: Any, served: Served) -> None:
    """Refuse what cannot be judged inside vLLM, and say what to take instead."""
    if rule.id not in SERVED_RULES:
        raise UserError(
            f"The rule '{rule.id}' cannot run inside vLLM. Take one of:"
            f" {', '.join(sorted(SERVED_RULES))}."
        )
    window = getattr(rule, "window", 0)
    is_too_short = (
        rule.id == "fly" and getattr(rule, "strict_window", True) and served.num_draft <= window
    )
    check(
        {
            "inside vLLM a rule only adds to the strict test. Leave 'superset' at true.": (
                not rule.superset
            ),
            'it judges by a gate, and none was given. Add "gate": a folder.': (
                "gate" in rule.needs and gate is None
            ),
            "it needs draft probabilities. Set draft_sample_method to 'probabilistic' in the"
            " speculative config, with a drafter that has a model.": (
                "q" in rule.needs and not served.probabilistic
            ),
            "think markers cannot be followed inside vLLM. Set scope to 'all'.": (
                getattr(rule, "scope", "all") == "think"
            ),
            "an online table would let answers depend on other users. Set table to 'frozen'.": (
                getattr(rule, "table", "frozen") == "online"
            ),
            f"a window of {window} does not fit into {served.num_draft} drafted tokens. Draft more"
            " tokens, or shorten the window.": is_too_short,
        },
        rule.id,
    )
