"""Decoding as the stages need it: a method of params.yaml as a decoder, and a whole split through it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gistgate.core.batches import PromptCache, decode_all
from gistgate.core.decoder import Decoder
from gistgate.core.drafter import Drafter
from gistgate.core.files import read_json, read_json_lines
from gistgate.core.gate import Gate
from gistgate.core.request import Statistics, Usage, eos_ids
from gistgate.core.utils import UserError
from gistgate.drafters import DRAFTERS
from gistgate.models import build as library
from gistgate.models.build import Choice, assemble
from gistgate.segments.build import DEFAULTS, SEGMENT_RULES, decoder_of
from gistgate.segments.probes import load_probes
from pipeline.pair.pair import Pair
from pipeline.params import MODEL, MethodParams, Params, nearest
from pipeline.paths import HEADS, SEGMENTS, TABLE_MODELS, prompts_of
from pipeline.retrieval import RETRIEVAL, retrieval_drafter
from pipeline.run import bar, decoding

if TYPE_CHECKING:
    from gistgate.lm_eval.task import Task

# ---- Drafters by id: the library's own, and those that know files of the run.


SEGMENT = "segment"
"""The drafter of segment rules: the draft model writes a segment to its end."""


def make_drafter(pair: Pair, drafter_id: str) -> Drafter | None:
    """A fresh drafter by id, of which "model" is the pair's own; None, which decodes plainly, for "none".

    Raises:
        UserError: there is no such drafter, or it lacks what it is made of.
    """
    if drafter_id in RETRIEVAL:
        return retrieval_drafter(drafter_id, pair)
    if drafter_id not in ("none", *DRAFTERS):
        known = ["none", *DRAFTERS, *RETRIEVAL]
        raise UserError(f"There is no drafter '{drafter_id}'. {nearest(drafter_id, known, 'drafters')}")
    own = pair.drafter if drafter_id == MODEL else drafter_id
    return library.make_drafter(own, library.Sources(pair.target, pair.tokenizer, pair.draft))


def asks_draft(drafter_id: str) -> bool:
    """Whether a drafter drafts with the pair's draft model, alone or among others."""
    return drafter_id in ("choice", SEGMENT) or (drafter_id not in RETRIEVAL and library.asks_draft(drafter_id))


def files_behind(drafter_id: str) -> list[Path]:
    """What a drafter knows besides the request, as files and folders."""
    return [SEGMENTS] if drafter_id == SEGMENT else list(RETRIEVAL.get(drafter_id, ()))


@dataclass(frozen=True)
class Outcome:
    """One decoded prompt."""

    id: str
    """Name of the prompt in its split."""
    ids: list[int]
    """Answer as token ids."""
    text: str
    """Answer as the task scores it."""
    score: float
    """The task's metric against the document, in [0, 1]."""
    statistics: Statistics
    """What was counted."""
    cut: bool = False
    """Whether the limit of tokens ended the answer."""


def read_prompts(split: str) -> list[dict[str, Any]]:
    """The prompts of a split as the stage `prompts` wrote them."""
    return read_json_lines(prompts_of(split))


def make_decoder(
    pair: Pair, method: MethodParams, settings: dict[str, Any], block: int, gate: Gate | None = None, **parts: Any
) -> Decoder:
    """The decoder of a method with these settings of its rule; `parts` go to `Decoder`.

    A segment rule judges with the probes of the stage `segments`, and by `gate` inside refused segments.
    """
    if method.rule in SEGMENT_RULES:
        probes = load_probes(SEGMENTS, pair.target, pair.draft_model)
        choice = Choice(method.rule, {**DEFAULTS, **settings}, probes.limit, SEGMENT)
        return decoder_of(probes, choice, pair.target, pair.draft_model, pair.tokenizer, gate, **parts)
    choice = Choice(method.rule, settings, block, method.drafter)
    return assemble(pair.target, pair.tokenizer, choice, make_drafter(pair, method.drafter), gate, **parts)


def request_of(prompts: Sequence[dict[str, Any]], pair: Pair) -> dict[str, Any]:
    """What all prompts of a split have in common, as arguments of `Decoder.generate`."""
    return {
        "max_new_tokens": prompts[0]["max_new_tokens"],
        "stops": prompts[0]["stops"],
        "eos_ids": eos_ids(pair.target, pair.tokenizer),
    }


def seeds_of(params: Params, prompts: Sequence[dict[str, Any]], first: int = 0) -> list[int]:
    """One seed for each prompt of a split from its place `first` on."""
    return [params.seed * 1_000_003 + first + index for index in range(len(prompts))]


def run_split(
    decoder: Decoder,
    task: Task,
    pair: Pair,
    prompts: Sequence[dict[str, Any]],
    params: Params,
    title: str = "decode",
    prefilled: PromptCache | None = None,
    first: int = 0,
    usage: Usage | None = None,
) -> list[Outcome]:
    """Decode and score prompts in batches; a progress bar shows rate and time left.

    `prefilled` remembers the prompts for the next setting that decodes them; `first` is the place of the first prompt
    in its split, which decides the seeds; `usage` counts how many slots had a row.
    """
    decode, usage = decode_all if prefilled is None else prefilled.decode_all, usage or Usage()
    with bar(title=title, unit="prompt", total=len(prompts)) as shown:
        answers = decode(
            decoder,
            [prompt["ids"] for prompt in prompts],
            batch_size=params.decoding.batch_size,
            seeds=seeds_of(params, prompts, first),
            progress=decoding(shown, usage),
            usage=usage,
            **request_of(prompts, pair),
        )
        tau = f"tau {usage.mean_accepted_length:.2f}"
        shown.set_postfix_str(f"{tau}, {usage.idle:.1%} of the slots idle")
    outcomes = []
    for prompt, answer in zip(prompts, answers, strict=True):
        text = task.text(pair.tokenizer, answer.ids)
        score = task.score(prompt["doc"], text)
        outcomes.append(Outcome(prompt["id"], answer.ids, text, score, answer.statistics, answer.finish == "length"))
    return outcomes


# ---- Gates of trained heads, where the stage `train` puts them.


def gate_folder(head: str) -> Path:
    """The gate folder of a head; heads that only the large table asks lie apart."""
    own = TABLE_MODELS / head
    return own if own.is_dir() else HEADS / head


def load_gate(head: str, pair: Pair) -> Gate:
    """The gate of a head, checked against the pair."""
    return Gate.load(gate_folder(head), pair.target, pair.draft, pair.tokenizer)


# ---- At which setting a method runs once calibration has spoken: the certified one, or strictly.


REPORTS = Path("reports")
OWN_REPORTS = Path("reports/speed")
"""Where methods at their own K are kept apart from those at the common one."""


@dataclass(frozen=True)
class Operating:
    """One method at one setting."""

    method: str
    """Name in params.yaml, or "plain"."""
    rule: str
    """Rule id that runs; "exact" where nothing looser is certified."""
    drafter: str
    """Drafter id; "none" is plain decoding."""
    block: int
    """K, in tokens."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of the rule."""
    knob: float | None = None
    """Value of the knob; None without one."""
    head: str | None = None
    """Head whose gate the rule asks."""
    budget: float | None = None
    """Certified loss against strict, as a share of prompts; None where none was asked for."""
    certified: bool = True
    """False where calibration certified nothing at the budget, so that the method runs strictly."""

    def as_method(self) -> MethodParams:
        """What `make_decoder` wants to know."""
        return MethodParams(self.rule, drafter=self.drafter, learned=self.head is not None, head=self.head)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)


def folder_of(params: Params, name: str, reports: Path = REPORTS) -> Path:
    """Where the results of one method lie: those of the large table apart from the core ones."""
    return reports / "table" if name in params.methods and params.methods[name].extra else reports


def calibration_file(params: Params, name: str, reports: Path = REPORTS) -> Path:
    """Where the calibration of a method is written; what a changed gate makes worthless lies in a folder apart."""
    group = "learned" if params.method(name).learned else "free"
    return folder_of(params, name, reports) / "calibration" / group / f"{name}.json"


def evaluation_folder(params: Params, name: str, reports: Path = REPORTS) -> Path:
    """Where lm-eval's verdict on a method lies."""
    return folder_of(params, name, reports) / "evaluation" / name


def operating_point(params: Params, name: str, budget: float | None = None, reports: Path = REPORTS) -> Operating:
    """Where `name` runs at `budget` (default: the headline budget).

    Raises:
        UserError: no such method, or its calibration is missing or speaks of another budget.
    """
    if name == "plain":
        return Operating("plain", "exact", "none", 0)
    method, block = params.method(name), params.block_of(name)
    if method.knob is None:
        return Operating(name, method.rule, method.drafter, block, method.settings({}, None), head=method.head)
    budget = params.headline_budget if budget is None else budget
    report = read_json(calibration_file(params, name, reports))
    found = next((entry for key, entry in report["budgets"].items() if float(key) == budget), None)
    if found is None:
        raise UserError(
            f"{calibration_file(params, name, reports)} says nothing about the budget {budget:g}. "
            "Add it to calibrate.budgets in params.yaml and run the stage `calibrate` again."
        )
    if not found["certified"]:
        return Operating(name, "exact", method.drafter, block, budget=budget, certified=False)
    settings = {**method.fixed, **found["fixed"], method.knob: found["knob"]}
    return Operating(name, method.rule, method.drafter, block, settings, found["knob"], method.head, budget)
