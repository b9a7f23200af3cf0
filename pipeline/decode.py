"""Decoding as the stages need it: a method as a decoder, what its drafter knows, and a whole split
through it.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

import gistgate
from gistgate.build import assemble
from gistgate.core.batches import PromptCache, decode_all
from gistgate.core.decoder import Decoder
from gistgate.core.drafter import Drafter
from gistgate.core.files import fingerprint
from gistgate.core.progress import bar
from gistgate.core.request import Generation
from gistgate.core.utils import UserError
from gistgate.coverage.choose import Choice
from gistgate.gate import Gate
from gistgate.models import sources as library
from gistgate.models.sources import CORPUS, STORED
from pipeline.methods import MODEL, SEGMENT, MethodParams
from pipeline.operating import Operating
from pipeline.pair.pair import Pair
from pipeline.params import Params
from pipeline.paths import DATASTORE, SEGMENTS, prompts_of, reference_of
from pipeline.task import request_of, seeds_of

KNOWN = {
    CORPUS: (prompts_of("train"), reference_of("train")),
    SEGMENT: (SEGMENTS,),
    **dict.fromkeys(STORED, (DATASTORE,)),
}
"""Ids of drafters -> the files that each knows besides the request: a certificate holds for no
other content.
"""


def make_decoder(
    pair: Pair,
    choice: Choice,
    gate: Gate | None = None,
    **parts: Any,
) -> Decoder:
    """The decoder of a rule with its settings, K and drafter; `parts` go to `Decoder`."""
    if choice.drafter == SEGMENT:
        return segment_decoder(pair, choice, **parts)
    drafter = make_drafter(pair, choice.drafter)
    return assemble(pair.target, pair.tokenizer, choice, drafter, gate, **parts)


def strict_decoder(pair: Pair, block: int, **parts: Any) -> Decoder:
    """The pair's strict decoder at K = `block`."""
    return make_decoder(pair, Choice("exact", {}, block, MODEL), **parts)


def segment_decoder(pair: Pair, choice: Choice, **parts: Any) -> Decoder:
    """The decoder of the probes of the stage `segments`, with the token gate that lies beside
    them.
    """
    from gistgate.segments.build import DEFAULTS, decoder_of
    from gistgate.segments.probes import load_probes

    models = (pair.target, pair.draft_model, pair.tokenizer)
    probes = load_probes(SEGMENTS, *models)
    if choice.block != probes.limit:
        raise UserError(
            f"The probes in {SEGMENTS} judge segments of {probes.limit} tokens. Set 'block' to"
            " that."
        )
    choice = replace(choice, settings={**DEFAULTS, **choice.settings})
    return decoder_of(probes, choice, *models, **parts)


def make_drafter(pair: Pair, drafter: str) -> Drafter | None:
    """A fresh drafter by id, of which "model" is the pair's own; None, which decodes plainly, for
    "none".
    """
    if drafter == CORPUS:
        from pipeline import retrieval  # imports searches that few methods need

        return retrieval.corpus_drafter()
    if drafter == MODEL:
        drafter = pair.drafter
    sources = library.Sources(pair.target, pair.tokenizer, pair.draft, DATASTORE)
    return library.make_drafter(drafter, sources)


def asks_draft(drafter: str) -> bool:
    """Whether a drafter drafts with the pair's draft model, alone or among others."""
    return drafter == SEGMENT or library.asks_draft(drafter)


def decoder_at(pair: Pair, point: Operating, **parts: Any) -> Decoder:
    """The decoder of a method at its operating point."""
    return make_decoder(pair, point.choice, load_gate(point, pair), **parts)


def load_gate(method: MethodParams | Operating, pair: Pair) -> Gate | None:
    """The gate that a method's rule asks, checked against the pair; None for a rule without one."""
    return Gate.load(method.gate, pair.target, pair.draft, pair.tokenizer) if method.gate else None


def surroundings(pair: Pair) -> tuple[Any, ...]:
    """What decides besides decoder and prompts whether answers come again: device, threads and
    code.
    """
    code = fingerprint(Path(gistgate.__file__).parent)
    return (str(pair.target.device), torch.__version__, torch.get_num_threads(), code)


def decode_split(
    decoder: Any,
    pair: Pair,
    prompts: Sequence[dict[str, Any]],
    params: Params,
    title: str,
    memory: PromptCache | None = None,
    first: int = 0,
    batch_size: int | None = None,
) -> list[Generation]:
    """Answers of a `Decoder`, or of a `pipeline.served.ServedDecoder`, to prompts of a split,
    `batch_size` rows at a time (None: as in params.yaml); the place `first` of the first one
    decides the seeds.
    """
    rows = batch_size or params.decoding.batch_size
    texts = [prompt["ids"] for prompt in prompts]
    request = request_of(prompts, pair)
    with bar(title=title, unit="prompt", total=len(prompts)) as progress:
        if not isinstance(decoder, Decoder):
            served: list[Generation] = decoder.answers(texts, progress.update, **request)
            return served
        request["seeds"] = seeds_of(params, prompts, first)
        if rows == 1:
            return single_requests(decoder, texts, progress.update, **request)
        job = {"batch_size": rows, "progress": progress.update, "memory": memory}
        return decode_all(decoder, texts, **job, **request)


def single_requests(
    decoder: Decoder,
    texts: Sequence[Sequence[int]],
    progress: Callable[[int], object],
    *,
    seeds: Sequence[int],
    **request: Any,
) -> list[Generation]:
    """Answers to one request after the other, exactly as a benchmark decodes and times them;
    `seconds["answer"]` of an answer is its time, reading the prompt included.
    """
    answers = []
    for ids, seed in zip(texts, seeds):
        started = perf_counter()
        (answer,) = decoder.generate([ids], seeds=[seed], **request)
        answer.statistics.seconds["answer"] = perf_counter() - started
        answers.append(answer)
        progress(1)
    return answers
