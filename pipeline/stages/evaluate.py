"""Let lm-eval judge a method on the test split, at the setting that is certified for the headline budget.

    python -m pipeline.stages.evaluate fly     writes reports/evaluation/fly/{summary.json,samples.jsonl}
    python -m pipeline.stages.evaluate all     every method of params.yaml and plain decoding, with one set of imports

"plain" decodes without a drafter. A method that has no certified setting at the headline budget runs strictly, and its
summary says so. Finished methods wait in a scratch folder under a fingerprint of all they depend on, so that an
interruption loses at most one method and a changed head repeats only the methods that ask it.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from gistgate.core.batches import PromptCache
from gistgate.core.certificate import scope_mismatch
from gistgate.core.decoder import Decoder
from gistgate.core.files import fingerprint, read_json, write_atomic, write_json, write_json_lines
from gistgate.core.gate import Gate
from gistgate.core.request import Usage
from gistgate.core.utils import UserError
from gistgate.lm_eval.model import GatedLM
from gistgate.lm_eval.task import Task
from gistgate.rules import make_rule
from pipeline import run as ranks
from pipeline.decode import (
    Operating,
    calibration_file,
    evaluation_folder,
    load_gate,
    make_decoder,
    operating_point,
    read_prompts,
)
from pipeline.outcomes import STRICT, Job, StrictAnswers, as_json, decoding_of, method_parts, pieces_of, scope_of
from pipeline.outcomes import DecodeStrictAnswers as Decode
from pipeline.pair.pair import Pair, load_pair, read_pair
from pipeline.params import Params, read_params
from pipeline.paths import SCRATCH
from pipeline.run import run, side_by_side
from pipeline.stages.prompts import context_length
from pipeline.tasks import Judged, judge, load_task

PLAIN = "plain"


def main(name: str) -> None:
    params = read_params()
    evaluate_all(params, [PLAIN, *params.methods] if name == "all" else [name])


def evaluate_all(params: Params, chosen: Sequence[str]) -> None:
    """Evaluate methods of `params` side by side, those apart that an earlier start finished."""
    points = {name: operating_point(params, name) for name in chosen}
    folders = {name: SCRATCH / f"evaluate-{name}-{dependencies(params, points[name])}" for name in chosen}
    missing = [name for name in chosen if not folders[name].is_dir()]
    pieces = pieces_of([(points[name], folders[name]) for name in missing], params)
    side_by_side(evaluator, params, pieces, params.decoding.workers, "evaluate", "decoder")
    for name in chosen if ranks.is_first() else ():
        write_atomic(evaluation_folder(params, name), lambda part, name=name: shutil.copytree(folders[name], part))  # type: ignore[misc]


def evaluator(params: Params) -> Callable[[list[Job]], None]:
    """Judges the methods of a piece, each into its folder."""
    evaluation = Evaluation(params)

    def work(piece: list[Job]) -> None:
        evaluation.share([point for point, _ in piece])
        for point, folder in piece:
            write_atomic(folder, lambda part, point=point: evaluation.evaluate(point, part))  # type: ignore[misc]

    return work


def dependencies(params: Params, point: Operating) -> str:
    """A name for all that a method's result depends on."""
    return fingerprint(*method_parts(params, point))


class Evaluation:
    """What all methods share: the pair, the task and the prompts."""

    def __init__(self, params: Params) -> None:
        logging.getLogger("lm_eval.models.huggingface").setLevel(logging.ERROR)  # it warns of every loaded model
        self.params = params
        self.pair: Pair = load_pair(params)
        self.context_length = context_length(read_pair(params.pair))
        self.task: Task = load_task(params)
        self.prompts = read_prompts("test")
        if not self.prompts:
            raise UserError("data/prompts/test.jsonl is empty. Run the stage `prompts` again.")
        self.memory = PromptCache(params.decoding.prompt_memory_mb)
        self.shared = StrictAnswers({}, self.memory.decode_all)
        self.judged: dict[str, Judged] = {}
        """What was judged already, by what the decoder does."""

    def share(self, points: Sequence[Operating]) -> None:
        """Let strict decoding, if it is the first of these methods, answer for the others where they agree with it."""
        loose = [point for point in points if point.rule != STRICT] if points[0].rule == STRICT else []
        rules = {decoding_of(point): make_rule(point.rule, **point.settings) for point in loose}
        self.shared = StrictAnswers(rules, self.memory.decode_all)

    def evaluate(self, point: Operating, folder: Path) -> None:
        """Judge one method and describe it in `folder`."""
        decoder, same = self.decoder(point), decoding_of(point)
        if same not in self.judged:
            strict = point.rule == STRICT
            self.judged[same] = self.judge(decoder, self.shared.strictly if strict else self.shared.loosely(same))
        judged = self.judged[same]
        self.judged[same] = replace(judged, usage=Usage())  # for the next method that decodes alike nothing is decoded
        write_json_lines(folder / "samples.jsonl", judged.samples)
        write_json(folder / "summary.json", self.summary(point, judged))
        tau, cut = judged.statistics.mean_accepted_length, f"{judged.cut} of {len(judged.samples)} answers cut"
        print(f"{point.method}: accuracy {judged.accuracy:.4f}, tau {tau:.3f}, {cut} at the limit")

    def judge(self, decoder: Decoder, decode: Decode | None = None) -> Judged:
        """lm-eval's verdict on a decoder; `decode` stands in for the memory of prompts."""
        usage = Usage()
        lm = GatedLM(
            self.pair.target,
            decoder=decoder,
            tokenizer=self.pair.tokenizer,
            batch_size=self.params.decoding.batch_size,
            max_length=self.context_length,
            seed=self.params.seed,
            decode=partial(decode or self.memory.decode_all, usage=usage),
        )
        return replace(judge(lm, self.task, self.prompts), usage=usage)

    def decoder(self, point: Operating) -> Decoder:
        """The decoder of a method, certified for what it is about to do."""
        gate = load_gate(point.head, self.pair) if point.head else None
        self.check_certificate(point, gate)
        return make_decoder(self.pair, point.as_method(), point.settings, point.block, gate=gate)

    def check_certificate(self, point: Operating, gate: Gate | None) -> None:
        """Refuse a certificate that was made for other models, prompts or settings.

        Raises:
            UserError: something differs; the first difference is named.
        """
        if point.knob is None:
            return
        certified = read_json(calibration_file(self.params, point.method))["proof"]["scope"]
        broken = scope_mismatch(certified, scope_of(self.params, point.method, self.pair, self.task, gate))
        if broken:
            raise UserError(f"Method '{point.method}': {broken}")

    def summary(self, point: Operating, judged: Judged) -> dict[str, Any]:
        """What the report reads."""
        counted = judged.statistics
        return {
            **point.as_dict(),
            "metric": self.task.metric,
            "n": len(judged.samples),
            "accuracy": judged.accuracy,
            "cut": judged.cut,
            "mean_accepted_length": counted.mean_accepted_length,
            "loose_per_100": counted.loose_per_100,
            "statistics": counted.as_dict(timed=False),
            **as_json(judged.usage),
        }


if __name__ == "__main__":
    run(main)
