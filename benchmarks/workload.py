"""What a finished run offers to benchmarks: its pair, its test prompts, and every certified method.

Benchmarks are started in the folder of that run, which holds models/, data/prompts/ and reports/.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from gistgate.decoding.decoder import Decoder
from gistgate.errors import UserError
from gistgate.files import fingerprint, read_json
from pipeline.certification.marks import maker_of
from pipeline.common.decoders import make_decoder, read_prompts, request_of
from pipeline.common.gates import gate_folder, load_gate
from pipeline.common.operating_point import OWN_REPORTS, REPORTS, Operating, calibration_file, operating_point
from pipeline.pairs.pair import Pair, load_pair
from pipeline.params import MethodParams, Params, read_params
from pipeline.speed.clock import machine
from pipeline.studies.speed.params import FILE, speed_params
from pipeline.studies.table.params import table_params

PROOF = ("confidence", "n", "losses", "gains", "bound", "bound_kind")
"""What a certificate rests on."""


@dataclass(frozen=True)
class Workload:
    """Pair, prompts and methods."""

    params: Params
    pair: Pair
    prompts: list[dict[str, Any]]

    @classmethod
    def load(cls, num_prompts: int, split: str = "test", pair: str | None = None, skip: int = 0) -> Workload:
        """Prompts of a split of the run in this folder: choices belong to `development`, claims to `test`.

        Args:
            num_prompts: at most so many.
            split: development or test.
            pair: name of another pair with the same target; default: the run's own.
            skip: so many of the first prompts are left out.

        Raises:
            UserError: it has no prompts, or its pair cannot be loaded.
        """
        params = read_params()
        if not Path("data/prompts/test.jsonl").exists():
            raise UserError("This folder has no data/prompts/test.jsonl. Run `make repro` here first.")
        prompts = read_prompts(split)
        if num_prompts and skip >= len(prompts):
            remedy = f"Lower --skip {skip}." if skip else "Run the stage `prompts` again."
            raise UserError(f"There are {len(prompts)} {split} prompts, so that none is left. {remedy}")
        loaded = load_pair(params if pair is None else replace(params, pair=pair))
        return cls(table_params(params), loaded, prompts[skip : skip + num_prompts])

    @property
    def ids(self) -> list[list[int]]:
        """Token ids of every prompt."""
        return [prompt["ids"] for prompt in self.prompts]

    @cached_property
    def request(self) -> dict[str, Any]:
        """Arguments of `Decoder.generate` that all prompts share."""
        return request_of(self.prompts, self.pair)

    def identity(self, points: Iterable[Operating]) -> str:
        """Fingerprint of what is measured and where: the machine, the pair's weights, and the gates of these points.

        What an interrupted measurement left is only taken up by one with the same.
        """
        heads = sorted({point.head for point in points if point.head})
        return fingerprint(machine(), maker_of(self.pair), *map(gate_folder, heads))

    @cached_property
    def points(self) -> dict[str, Operating]:
        """Methods that run loosely with a certificate for the headline budget, by name."""
        return certified_points(self.params)

    @cached_property
    def own(self) -> dict[str, Operating]:
        """The same methods, each at its own K where it is certified there.

        Raises:
            UserError: a method was calibrated at another K than params.yaml now says.
        """
        params, found = speed_params(self.params), dict(self.points)
        for name in params.methods:
            path = calibration_file(params, name, OWN_REPORTS)
            if not path.exists():
                continue
            block, own = read_json(path)["block"], params.block_of(name)
            if block != own:
                raise UserError(f"{path} is about K = {block}, but {FILE} says {own}. Run `make speed` again.")
            point = operating_point(params, name, reports=OWN_REPORTS)
            if point.certified:
                found[name] = point
        return found

    def certificate(self, name: str) -> dict[str, Any]:
        """The prompts, losses, gains and bound behind a method of `own`."""
        for params, reports in ((speed_params(self.params), OWN_REPORTS), (self.params, REPORTS)):
            if name not in params.methods or not calibration_file(params, name, reports).exists():
                continue
            if operating_point(params, name, reports=reports) == self.own[name]:
                verdicts = read_json(calibration_file(params, name, reports))["budgets"]
                found = next(one for budget, one in verdicts.items() if float(budget) == self.own[name].budget)
                return {key: found[key] for key in PROOF}
        raise UserError(f"No calibration of '{name}' is left. Run `make speed` again.")

    @cached_property
    def headline(self) -> list[str]:
        """The learned method that is certified at the common K; empty where there is none, which a sentence says."""
        found = [name for name, point in self.points.items() if point.head is not None][:1]
        if not found:
            print("No learned method is certified here at the common K, so that none is measured.")
        return found

    def plain(self, engine: str) -> Decoder:
        """The target alone."""
        return make_decoder(self.pair, MethodParams("exact", drafter="none"), {}, 0, engine=engine)

    def strict(self, block: int, engine: str) -> Decoder:
        """Lossless decoding with the draft model."""
        return make_decoder(self.pair, MethodParams("exact"), {}, block, engine=engine)

    def method(self, name: str, engine: str, block: int | None = None) -> Decoder:
        """A certified method, at the common K unless another is given."""
        return self.at(self.points[name] if block is None else replace(self.points[name], block=block), engine)

    def at(self, point: Operating, engine: str) -> Decoder:
        """A method at one of its points."""
        gate = load_gate(point.head, self.pair) if point.head else None
        return make_decoder(self.pair, point.as_method(), point.settings, point.block, gate=gate, engine=engine)


def certified_points(params: Params) -> dict[str, Operating]:
    """Methods that run loosely with a certificate for the headline budget, by name."""
    names = [name for name in params.methods if calibration_file(params, name).exists()]
    found = {name: operating_point(params, name) for name in names}
    return {name: point for name, point in found.items() if point.certified and point.rule != "exact"}
