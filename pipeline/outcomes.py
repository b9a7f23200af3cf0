"""The methods of params.yaml as outcomes: decoded on the prompts of a run, and scored against its strict reference."""

from __future__ import annotations

import csv
import io
import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gistgate.certificates.bounds import Array
from gistgate.certificates.calibration import Method, decoding_scope, task_scope
from gistgate.certificates.fixed_sequence import Tested
from gistgate.certificates.judged import Look, hash_of, level
from gistgate.certificates.outcomes import Answer, Decode, Outcomes, Strict, TaskScore, cached, untimed
from gistgate.certificates.outcomes import Prompt as Prompt_agreement
from gistgate.core.batches import PromptCache
from gistgate.core.block import Acceptance, Block, Sampling
from gistgate.core.decoder import Decoder
from gistgate.core.files import fingerprint, named_files, read_json, read_json_lines, read_text, write_json, write_text
from gistgate.core.gate import Gate
from gistgate.core.identity import gate_hash, identify_model, model_scope, tokenizer_scope
from gistgate.core.request import Generation, Row, Usage, eos_ids
from gistgate.core.rule import Exact, Rule, settle
from gistgate.core.utils import UserError
from gistgate.lm_eval.prompts import Prompt, decode_prompts, hashes_of
from gistgate.lm_eval.task import Task, files_of
from gistgate.rules import make_rule
from pipeline.decode import (
    Operating,
    asks_draft,
    files_behind,
    gate_folder,
    load_gate,
    make_decoder,
    operating_point,
    read_prompts,
    seeds_of,
)
from pipeline.pair.pair import Pair, load_pair, read_pair
from pipeline.params import MethodParams, Params
from pipeline.paths import AGREEMENT, PAIRS, SCRATCH, TASKS
from pipeline.run import bar, decoding
from pipeline.tasks import load_task

# ---- Settings that decide every block of an answer alike share the answer: it is decoded once.


TOGETHER = 2
"""Batches that calibration decodes between two looks at whether a setting is lost."""
DRAFTER = "model"
"""The drafter whose drafts depend on nothing but the text."""


def key_of(rule: str, settings: Mapping[str, Any]) -> str:
    """A name for one setting of a rule."""
    return json.dumps([rule, dict(settings)], sort_keys=True)


def rules_of(method: MethodParams) -> dict[str, Rule]:
    """All settings of a method that may share answers, by their keys; none where its parts remember something."""
    if method.drafter != DRAFTER or method.knob is None:
        return {}
    given = [{**method.fixed, **variant, method.knob: value} for variant in method.variants for value in method.grid]
    rules = {key_of(method.rule, settings): make_rule(method.rule, **settings) for settings in given}
    return rules if all(map(forgets, rules.values())) else {}


def rules_beside_strict(params: Params) -> dict[str, Rule]:
    """All settings of the methods without a gate that may share strict answers, by their keys."""
    names = [name for name, method in params.methods.items() if not method.learned]
    alike = [params.method(name) for name in names if params.block_of(name) == params.decoding.block]
    return {key: rule for method in alike for key, rule in rules_of(method).items()}


def agreement_file(split: str) -> Path:
    """Where the stage `reference` writes the settings that agree with strict decoding."""
    return AGREEMENT / f"{split}.json"


def read_agreement(split: str) -> dict[str, set[str]]:
    """Ids of the prompts that a setting answers by the same blocks as strict decoding, by the setting's key."""
    path = agreement_file(split)
    found: dict[str, list[str]] = read_json(path) if path.is_file() else {}
    return {key: set(ids) for key, ids in found.items()}


def forgets(rule: Rule) -> bool:
    """Whether a rule judges every block for itself, and knows nothing of tokenizer and request."""
    kind = type(rule)
    own = {name for name in ("advance", "context") if getattr(kind, name) is not getattr(Rule, name, None)}
    return not own and rule.verifier is None and not rule.counters


class Agreement:
    """An observer of a decoder: which of `rules` would have kept the same tokens of every block of a row.

    Rows are told apart by their seeds, so all prompts of a call need different ones.
    """

    layers: Collection[str] = frozenset()
    wants_q = False

    def __init__(self, rules: Mapping[str, Rule]) -> None:
        self.rules = dict(rules)
        self.differing: dict[int, set[str]] = {}

    def __call__(self, block: Block, acceptance: Acceptance, rows: list[Row]) -> None:
        seen = [self.differing.setdefault(row.seed, set()) for row in rows]
        for key, rule in self.rules.items():
            if all(key in differing for differing in seen):
                continue
            other = settle(rule, block, {})
            differs_B = (other.length != acceptance.length) | (other.own_ids != acceptance.own_ids)
            for differing, differs in zip(seen, differs_B.tolist(), strict=True):
                if differs:
                    differing.add(key)

    def alike(self, seed: int) -> list[str]:
        """The keys of the rules that agreed on a row to its end; none for a row without a block."""
        return sorted(self.rules.keys() - self.differing[seed]) if seed in self.differing else []


@dataclass(frozen=True)
class Watched(Exact):
    """Strict decoding whose blocks carry what other rules ask for."""

    asked: frozenset[str] = frozenset()
    """Their `needs`."""

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        return self.asked


Fresh = Callable[[dict[str, Any], Sequence[Prompt_agreement], list[int], Agreement], list[Answer]]
"""Decode prompts with these seeds at one setting while an observer watches."""


class SharedAnswers:
    """The answers of one method; a setting takes over those of settings before that decided alike."""

    def __init__(self, rule: str, rules: Mapping[str, Rule], fresh: Fresh) -> None:
        self.rule, self.rules, self.fresh = rule, rules, fresh
        self.known: dict[tuple[str, int], dict[str, Answer]] = {}

    def learn(self, prompt: Prompt_agreement, seed: int, answer: Answer, keys: Collection[str]) -> None:
        """Keep an answer for all settings that give it."""
        self.known.setdefault((prompt["id"], seed), {}).update(dict.fromkeys(keys, answer))

    def decode(
        self, settings: dict[str, Any], prompts: Sequence[Prompt_agreement], seeds: Sequence[int]
    ) -> list[Answer]:
        """The answers at one setting; only prompts without a known one are decoded."""
        key, pairs = key_of(self.rule, settings), list(zip(prompts, seeds, strict=True))
        missing = [pair for pair in pairs if key not in self.known.get((pair[0]["id"], pair[1]), {})]
        if missing:
            watcher = Agreement({name: rule for name, rule in self.rules.items() if name != key})
            answers = self.fresh(settings, [prompt for prompt, _ in missing], [seed for _, seed in missing], watcher)
            for (prompt, seed), answer in zip(missing, answers, strict=True):
                self.learn(prompt, seed, answer, [key, *watcher.alike(seed)])
        return [self.known[prompt["id"], seed][key] for prompt, seed in pairs]


# ---- What strict answers were made with, as a mark on each of them: they are compared with answers of the same models.


DIGITS = 10
"""Hexadecimal digits of a mark."""


def maker_of(pair: Pair) -> str:
    """Fingerprint of all of a pair that decides an answer: weights and forms of its models, and how texts are read."""
    models = [model_scope(identify_model(model)) for model in pair.models]
    return fingerprint(models, tokenizer_scope(pair.tokenizer, ("encoding",)), eos_ids(pair.target, pair.tokenizer))


def mark(maker: str, ids: Sequence[int]) -> str:
    """The mark of an answer of `maker` to the prompt with these token ids."""
    return fingerprint(maker, [int(token) for token in ids])[:DIGITS]


# ---- How well the batches of a stage were filled, as its JSON file tells it and as it waits beside finished pieces.


SLOTS, USED, IDLE = "slots", "slots_used", "idle_share_of_slots"
"""Entries of a JSON file: slots that the rounds had, those of them that held a row, and the share that held none. The
stages `collect` and `label` name theirs alike."""


def as_json(usage: Usage | None) -> dict[str, int | float | None]:
    """The entries; all are None where the use is not known, and the share is None where nothing was decoded."""
    if usage is None:
        return {SLOTS: None, USED: None, IDLE: None}
    return {SLOTS: usage.available, USED: usage.busy, IDLE: usage.idle if usage.available else None}


def told(entries: Mapping[str, Any]) -> Usage | None:
    """What a JSON file tells; None where it does not, as files that were made before these entries."""
    slots, used = entries.get(SLOTS), entries.get(USED)
    return None if slots is None or used is None else Usage(busy=used, available=slots)


def summed(usages: Iterable[Usage | None]) -> Usage | None:
    """The slots of all of them; None where one is not known, because the rest would say something else."""
    found = Usage()
    for usage in usages:
        if usage is None:
            return None
        found.count(usage.busy, usage.available)
    return found


def keep_beside(piece: Path, usage: Usage) -> None:
    """Write how the slots of a piece were used; called before the piece itself is written."""
    write_json(piece.with_suffix(".json"), as_json(usage))


def kept_beside(piece: Path) -> Usage | None:
    """How the slots of a finished piece were used; None where nobody has kept it."""
    path = piece.with_suffix(".json")
    return told(read_json(path)) if path.exists() else None


class PieceUsage:
    """The use of the slots of one method, whose answers come in pieces that may be asked for many times.

    A piece counts once, in whichever start it was decoded. A start that goes on behind an interruption may decode
    answers that an uninterrupted one shares between settings, and then tells what was spent: more slots.
    """

    def __init__(self) -> None:
        self._fresh = Usage()
        self._pieces: dict[Path, Usage | None] = {}

    def add(self, usage: Usage) -> None:
        """Hear how the slots of a request for the present piece were used."""
        self._fresh.count(usage.busy, usage.available)

    def made(self, piece: Path) -> None:
        """Keep what was added since the piece before; called before this one is written."""
        keep_beside(piece, self._fresh)
        self._fresh = Usage()

    def read(self, piece: Path) -> None:
        """Count a piece whose answers are handed out."""
        if piece not in self._pieces:
            self._pieces[piece] = kept_beside(piece)

    @property
    def total(self) -> Usage | None:
        """The slots of all pieces that were handed out; None where one of them does not tell."""
        return summed(self._pieces.values())


SPLITS = ("development", "calibration")

RowOutcomes = dict[str, Any]


class Setup:
    """What all methods of a run share: the pair, the task, the prompts, and prompts that are read once."""

    def __init__(self, params: Params, prompts: Mapping[str, list[Prompt]] | None = None) -> None:
        """`prompts` take the place of the run's, by split."""
        self.params = params
        self.pair, self.task = load_pair(params), load_task(params)
        own = prompts or {}
        self.fresh = frozenset(own)
        """Splits that the stage `reference` has not answered."""
        self.prompts = {split: own[split] if split in own else read_prompts(split) for split in SPLITS}
        names = [prompt["id"] for prompts in self.prompts.values() for prompt in prompts]
        if len(set(names)) < len(names):
            raise ValueError("two prompts have the same name, so that one would be compared with the other's answer")
        self.memory = PromptCache(params.decoding.prompt_memory_mb)
        self.scorer = TaskScore(self.task, self.pair.tokenizer)
        self.usage = defaultdict[str, PieceUsage](PieceUsage)
        """How the slots of decoded answers were used, by method; shared and strict answers decode nothing."""

    @cached_property
    def dependencies(self) -> str:
        """Fingerprint of what every decoded setting depends on, whatever the method."""
        return fingerprint(self.maker, self.params.decoding.batch_size, self.params.seed)

    @cached_property
    def maker(self) -> str:
        """What strict answers have to be made by."""
        return maker_of(self.pair)

    @cached_property
    def reference(self) -> dict[str, RowOutcomes]:
        """The strict answers by prompt: those of the stage `reference`, or decoded here for fresh prompts."""
        return {row["id"]: row for split in self.prompts for row in self.answered(split)}

    def answered(self, split: str) -> list[RowOutcomes]:
        """The strict answers to a split, with scores."""
        prompts = self.prompts[split]
        if split not in self.fresh:
            return read_reference(split, prompts, self.maker)
        decode, dtype = self.loose("exact", MethodParams("exact"), self.params.decoding.block), self.pair.target.dtype
        size = len(prompts) if dtype == torch.float32 else TOGETHER * self.params.decoding.batch_size
        starts = range(0, len(prompts), size)
        answers = [answer for start in starts for answer in decode({}, prompts[start : start + size], start)]
        return [
            {
                "id": prompt["id"],
                "ids": answer.ids,
                "score": self.scorer.score(prompt, answer.ids),
                "statistics": answer.statistics.as_dict(timed=False),
            }
            for prompt, answer in zip(prompts, answers, strict=True)
        ]

    def strict_scores(self, split: str) -> Array:
        """Scores of the strict answers to a split [N]."""
        return np.array([self.reference[prompt["id"]]["score"] for prompt in self.prompts[split]], float)

    def outcomes(self, name: str, chunk: int | None = None) -> Outcomes:
        """A method at K = `block_of(name)`, against the strict reference."""
        params, method = self.params, self.params.method(name)
        if method == MethodParams("exact") and params.block_of(name) == params.decoding.block:
            return Outcomes(self.prompts, self.scorer, self.strict, self.strict_answers, chunk)
        return Outcomes(self.prompts, self.scorer, self.strict, self.loose(name, method, params.block_of(name)), chunk)

    @property
    def strict(self) -> Strict:
        """Strict answers as the stage `reference` decoded them."""
        return lambda prompts, _start: [self.reference[prompt["id"]]["ids"] for prompt in prompts]

    def strict_answers(self, _settings: dict[str, Any], prompts: Sequence[Prompt], _start: int) -> list[Answer]:
        """The same with their statistics: strict decoding is its own reference."""
        rows = [self.reference[prompt["id"]] for prompt in prompts]
        return [Answer(row["ids"], untimed(row["statistics"])) for row in rows]

    def gate(self, name: str) -> Gate | None:
        """The gate that a method's rule asks; None for a rule without one."""
        head = self.params.method(name).head
        return load_gate(head, self.pair) if head else None

    def loose(self, name: str, method: MethodParams, block: int) -> Decode:
        """A method's answers at K = `block`: decoded once, then read from the scratch folder."""
        gate = load_gate(method.head, self.pair) if method.head else None
        depends = (
            self.dependencies, method.rule, method.drafter, block, *files_behind(method.drafter),
            gate and gate_hash(gate),
        )  # fmt: skip

        def fresh(
            settings: dict[str, Any], prompts: Sequence[Prompt], seeds: list[int], watcher: Agreement
        ) -> list[Answer]:
            decoder = make_decoder(self.pair, method, settings, block, gate=gate, observer=watcher)
            return self.decode(name, decoder, settings, prompts, seeds)

        shared = SharedAnswers(method.rule, rules_of(method), fresh)
        if not self.fresh and block == self.params.decoding.block and not method.head:
            self.teach(shared)

        def decode(settings: dict[str, Any], prompts: Sequence[Prompt], start: int) -> list[Answer]:
            return shared.decode(settings, prompts, seeds_of(self.params, prompts, start))

        return cached(decode, SCRATCH / "calibrate", name, *depends, watcher=self.usage[name])

    def teach(self, shared: SharedAnswers) -> None:
        """Hand over the strict answers that some settings give as well."""
        for split, prompts in self.prompts.items():
            agreement = {key: ids for key, ids in read_agreement(split).items() if key in shared.rules}
            for prompt, seed in zip(prompts, seeds_of(self.params, prompts), strict=True) if agreement else ():
                keys = [key for key, ids in agreement.items() if prompt["id"] in ids]
                shared.learn(prompt, seed, self.strict_answers({}, [prompt], 0)[0], keys)

    def kept(self, name: str, make: Callable[[dict[str, Any]], Decoder], *depends: Any) -> Decode:
        """Answers of the decoders that `make` returns, kept in the scratch folder."""

        def decode(settings: dict[str, Any], prompts: Sequence[Prompt], start: int) -> list[Answer]:
            return self.decode(name, make(settings), settings, prompts, seeds_of(self.params, prompts, start))

        return cached(decode, SCRATCH / "calibrate", name, *depends, watcher=self.usage[name])

    def decode(
        self, name: str, decoder: Decoder, settings: dict[str, Any], prompts: Sequence[Prompt], seeds: list[int]
    ) -> list[Answer]:
        """Answers of one decoder, with a progress bar; `usage` counts their slots under the name."""
        values = ", ".join(f"{key} {value}" for key, value in settings.items())
        with bar(title=f"{name} {values}".strip(), unit="prompt", total=len(prompts)) as progress:
            size, usage = self.params.decoding.batch_size, Usage()
            watch = decoding(progress, usage)
            answers = decode_prompts(decoder, prompts, seeds, size, self.memory, watch, usage)
        self.usage[name].add(usage)
        return answers


def method_of(params: Params, name: str) -> Method:
    """A method of params.yaml as the certification engine wants it."""
    given = params.method(name)
    return Method(
        rule=given.rule,
        drafter=given.drafter,
        block=params.block_of(name),
        knob=given.knob,
        grid=tuple(given.grid),
        fixed=given.fixed,
        variants=tuple(given.variants),
    )


def read_reference(split: str, prompts: Sequence[Prompt], maker: str) -> list[RowOutcomes]:
    """The strict reference of a split, in the order of its prompts; answers of earlier versions have no mark.

    Raises:
        UserError: the reference was made from other prompts or by another pair, or there are none.
    """
    rows = read_json_lines(Path("data/reference") / f"{split}.jsonl")
    if not prompts or [row["id"] for row in rows] != [prompt["id"] for prompt in prompts]:
        raise UserError(
            f"data/reference/{split}.jsonl ({len(rows)} answers) does not belong to data/prompts/{split}.jsonl "
            f"({len(prompts)} prompts). Run the stage `reference` again."
        )
    for row, prompt in zip(rows, prompts, strict=True):
        if row.get("mark") not in (None, mark(maker, prompt["ids"])):
            raise UserError(
                f"data/reference/{split}.jsonl answers other prompts than data/prompts/{split}.jsonl, or was made with "
                "other weights or another tokenizer. Run `dvc repro --force --single-item reference`, then go on."
            )
    return rows


# ---- The scope of a certificate of a method of params.yaml. Whatever differs at use makes the certificate void.


PROMPTS = Path("data/prompts/calibration.jsonl")


def scope_of(
    params: Params, name: str, pair: Pair, task: Task, gate: Gate | None, prompts: Any = PROMPTS
) -> dict[str, Any]:
    """Everything that a certificate of method `name` depends on.

    `prompts` tells the calibration prompts from others: their file, or their token ids.
    """
    method = method_of(params, name)
    draft = pair.draft if asks_draft(method.drafter) else None
    rows, data = params.decoding.batch_size, files_behind(method.drafter)
    decoding = decoding_scope(method, pair.target, draft, pair.tokenizer, gate, rows, data)
    return {**decoding, **task_scope(task, prompts, pair.tokenizer)}


# ---- Outcomes of every prompt at every tested setting, as a table from which bounds can be computed again.


COLUMNS = ("setting", "id", "strict", "loose", "tokens", "capped")
"""Place in the sequence, prompt, scores of strict and loose decoding in [0, 1], length of the loose answer in tokens,
and 1 where the answer reached its longest length."""


def write_records(path: Path, tested: Sequence[Tested], prompts: Sequence[Prompt], strict: Sequence[float]) -> None:
    """Write the outcomes of a sequence on the calibration prompts, whose strict scores are `strict [N]`."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    for place, one in enumerate(tested):
        differences = one.decoded.differences.tolist()  # of the first prompts alone where the setting was left early
        seen = slice(len(differences))
        rows = zip(prompts[seen], strict[seen], differences, one.decoded.statistics, strict=True)
        for prompt, score, difference, counted in rows:
            capped = int(counted.tokens >= prompt["max_new_tokens"])
            table.writerow([place, prompt["id"], f"{score:.12g}", f"{score - difference:.12g}", counted.tokens, capped])
    write_text(path, text.getvalue())


def read_differences(path: Path) -> Array:
    """d = strict - loose score of every tested setting and prompt [S, N], from strict to loose.

    Raises:
        UserError: the file is missing, or its settings have different prompts, as where one was left early.
    """
    rows = list(csv.DictReader(io.StringIO(read_text(path))))
    places = sorted({int(row["setting"]) for row in rows})
    found = [[row for row in rows if int(row["setting"]) == place] for place in places]
    if not found or any([row["id"] for row in one] != [row["id"] for row in found[0]] for one in found):
        raise UserError(
            f"{path} does not hold the same prompts for every setting: with `calibrate.stop` at lost or clear, a "
            "setting is left early. Set it to planned and run the stage `calibrate` on fresh prompts."
        )
    return np.array([[float(row["strict"]) - float(row["loose"]) for row in one] for one in found])


# ---- What a calibration records before it judges its calibration prompts.


CHOOSING = "gistgate.certificates.search"
"""The module that chooses the settings to test."""
APART = ("tracking", "benchmark", "adversarial", "allow_code", "methods", "decoding", "task_data")
"""Keys of params.yaml that choose nothing, or of which only a part does."""


@dataclass(frozen=True)
class Study:
    """What a study adds to the parameters and the stages of the core."""

    name: str = ""
    """A study that certifies methods apart from the core, such as at their own K; empty for claims of the core."""
    own: Any = None
    """Parameters of the study that lead to the tested settings, as plain JSON."""
    modules: tuple[str, ...] = ()
    """Modules of the study that choose or train, besides the stages of the core."""


CORE = Study()
"""No study: the methods of params.yaml."""


def look_of(setup: Setup, name: str, study: Study = CORE) -> Look:
    """The look at the calibration prompts for the method `name`.

    Args:
        setup: the run; its calibration prompts are those that are about to be judged.
        name: a method of params.yaml, or a name of the study's own.
        study: who certifies it.
    """
    params = setup.params
    prompts, block = setup.prompts["calibration"], params.calibrate
    problems = hashes_of(setup.task.problem(prompt["doc"]) for prompt in prompts).split()
    return Look(
        claim=claim_of(params, setup.scorer.id, name, study),
        marks=[*(hash_of(prompt["ids"]) for prompt in prompts), *problems],
        spent=1 - level(block.confidence, block.looks),
        error=1 - block.confidence,
        choice=choice_of(params, name, study.own),
        remedy=remedy(params),
    )


def claim_of(params: Params, score: str, name: str, study: Study = CORE) -> str:
    """What is certified, in one line."""
    certified = f"{name} in the study {study.name}" if study.name else name
    return f"{params.pair}, {params.task}, {score}: {certified}"


def remedy(params: Params) -> str:
    """How fresh calibration prompts are drawn."""
    return f"Set prompts.draw to {params.prompts.draw + 1} in params.yaml, which draws fresh calibration prompts."


def choice_of(params: Params, name: str, own: Any = None) -> str:
    """Fingerprint of what leads to a method's tested settings, besides the code of the stages.

    It takes in every parameter that can change a gate, a text or a setting, the method's own among them; the files of
    the pair and the task; the data that replace the task's; and the module that chooses settings.
    """
    kept = {block: value for block, value in asdict(params).items() if block not in APART}
    decoding = params.decoding.deciding
    method = params.methods.get(name)
    asked = [PAIRS / f"{params.pair}.yaml", *files_of(TASKS / f"{params.task}.yaml")]
    data = [Path(params.task_data)] if params.task_data else []
    return fingerprint(kept, decoding, method and asdict(method), own, *asked, *data)


# ---- What the result of a method depends on besides the code of the stage that finds it.


def method_parts(params: Params, point: Operating) -> list[str | Path]:
    """The settings, and the files and folders, that a result on test prompts depends on, for a fingerprint."""
    source = read_pair(params.pair)
    pair = [Path(model.model) for model in source.models if model.is_folder]
    gate = [gate_folder(point.head)] if point.head else []
    files = [Path("data/prompts/test.jsonl"), Path("data/tasks"), *pair, *gate, *files_behind(point.drafter)]
    settings = [point, source, params.task, params.task_metric, params.prompting, params.decoding.deciding, params.seed]
    return [*map(repr, settings), *files, *named_files(point.settings)]


# ---- Which methods of an evaluation go together: those that decode alike, and those that may share strict answers.


STRICT = "exact"
"""Id of the strict rule, and the name of its method."""

Job = tuple[Operating, Path]
"""A method at its setting, and the folder of its verdict."""


def pieces_of(missing: Sequence[Job], params: Params) -> list[list[Job]]:
    """What a worker takes at once: methods that decode alike, and strict decoding with all that may share its answers.

    Strict decoding comes first in its piece.
    """
    point = operating_point(params, STRICT) if STRICT in params.methods else None
    strict = decoding_of(point) if point is not None and may_share(point, params) else None
    pieces: dict[str, list[Job]] = {}
    for job in missing:
        shares = strict is not None and may_share(job[0], params)
        pieces.setdefault(str(strict) if shares else decoding_of(job[0]), []).append(job)
    return [sorted(piece, key=lambda job: decoding_of(job[0]) != strict) for piece in pieces.values()]


def may_share(point: Operating, params: Params) -> bool:
    """Whether a method may take over answers of strict decoding: same drafts, and nothing remembered."""
    same = point.drafter == DRAFTER and point.block == params.decoding.block and point.head is None
    return same and forgets(make_rule(point.rule, **point.settings))


def decoding_of(point: Operating) -> str:
    """A name for what a method's decoder does; all that run strictly share it."""
    return repr((point.rule, point.drafter, point.block, point.settings, point.head))


# ---- Answers of strict decoding that other methods give as well: an evaluation decodes them once.


DecodeStrictAnswers = Callable[..., list[Generation]]
"""`gistgate.core.batches.decode_all`, or that of a memory of prompts."""


def watched(strict: Decoder, watcher: Agreement) -> Decoder:
    """Strict decoding whose blocks carry what the watched rules ask for."""
    asked: frozenset[str] = frozenset().union(*(rule.needs for rule in watcher.rules.values()))
    return strict.having(rule=Watched(asked), observer=watcher)


class StrictAnswers:
    """Remembers, by rule and prompt, the strict answers that the rule gives as well."""

    def __init__(self, rules: Mapping[str, Rule], decode: DecodeStrictAnswers) -> None:
        """`rules` by names; those remember nothing between blocks, and their drafter is strict decoding's."""
        self.rules, self.decode = rules, decode
        self._known: dict[str, dict[tuple[int, ...], Generation]] = {name: {} for name in rules}

    def strictly(
        self, decoder: Decoder, prompts: Sequence[Sequence[int]], *, seeds: Sequence[int], **request: Any
    ) -> list[Generation]:
        """Strict answers; who else gives them is remembered."""
        if not self.rules or not is_greedy(request):
            return self.decode(decoder, prompts, seeds=seeds, **request)
        watcher = Agreement(self.rules)
        answers = self.decode(watched(decoder, watcher), prompts, seeds=seeds, **request)
        for prompt, seed, answer in zip(prompts, seeds, answers, strict=True):
            for name in watcher.alike(seed):
                self._known[name][tuple(prompt)] = answer
        return answers

    def loosely(self, name: str) -> DecodeStrictAnswers:
        """A way to decode with the rule of that name: only prompts without a known answer are decoded."""
        known = self._known.get(name, {})

        def decode(
            decoder: Decoder, prompts: Sequence[Sequence[int]], *, seeds: Sequence[int], **request: Any
        ) -> list[Generation]:
            answers = {place: known.get(tuple(prompt)) for place, prompt in enumerate(prompts)}
            missing = [place for place, answer in answers.items() if answer is None or not is_greedy(request)]
            fresh = (
                self.decode(decoder, [prompts[n] for n in missing], seeds=[seeds[n] for n in missing], **request)
                if missing
                else []
            )
            answers |= dict(zip(missing, fresh, strict=True))
            return [answer for answer in answers.values() if answer is not None]

        return decode


def is_greedy(request: Mapping[str, Any]) -> bool:
    """Whether a request draws nothing at random."""
    sampling: Sampling = request.get("sampling") or Sampling()
    return sampling.greedy
