"""Which certified setting is fastest on this machine. The fastest of many noisy times looks faster
than it is, so half of the prompts picks a strict and a certified candidate, and the other half
alone says whether the latter wins."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gistgate.build import Builder
from gistgate.core.decoder import Decoder
from gistgate.core.utils import UserError
from gistgate.coverage.certificate import Certificate
from gistgate.coverage.choose import MODEL, NONE, STRICT, Choice, usable
from gistgate.measure.speed import Prompts, contender, race, without_loops
from gistgate.measure.statistics import Interval, ratio_of_sums
from gistgate.models.loading import Target
from gistgate.models.options import DecodeOptions, PromptFile
from gistgate.models.sources import STOPPING, make_drafter

PLAIN = "plain"
FEWEST = 4  # prompts without which two halves say nothing
BLOCKS = (2, 4, 8)  # K of the strict candidates


@dataclass(frozen=True)
class Candidate:
    """One way of decoding that loses at most what was asked for."""

    name: str
    decoder: Decoder
    # Of its one setting; None for plain and strict decoding, which lose nothing.
    certificate: Certificate | None = None


@dataclass(frozen=True)
class Finding:
    """What the race showed."""

    # Speed of every candidate against plain decoding on the first half of the prompts.
    screened: Mapping[str, float]
    strict: Candidate  # the fastest strict candidate of the first half
    # The fastest certified candidate of the first half; None where nothing is certified.
    loose: Candidate | None
    to_plain: Mapping[str, Interval]  # speed of these two against plain decoding on the second half
    # Speed of the certified one against the strict one on the second half.
    to_strict: Interval | None

    @property
    def winner(self) -> Candidate | None:
        """The certified candidate, if it is faster than strict and plain decoding beyond doubt;
        else None.
        """
        if self.loose is None or self.to_strict is None:
            return None
        is_faster = min(self.to_strict.low, self.to_plain[self.loose.name].low) > 1
        return self.loose if is_faster else None


def tune(candidates: Sequence[Candidate], prompts: Prompts, **request: Any) -> Finding:
    """Race the candidates, among them plain decoding and at least one strict one; `request` goes to
    the decoders.
    """
    if len(prompts) < FEWEST:
        raise UserError(
            f"Tuning needs at least {FEWEST} prompts, better twenty, and {len(prompts)} were given."
            " Add some."
        )
    half = len(prompts) // 2
    first = times_of(candidates, prompts[:half], request)
    screened = {name: sum(first[PLAIN]) / sum(seconds) for name, seconds in first.items()}
    plain = next(candidate for candidate in candidates if candidate.name == PLAIN)
    ranked = sorted(candidates, key=lambda candidate: -screened[candidate.name])
    strict = plain
    loose = None
    for candidate in reversed(ranked):
        if candidate.certificate is not None:
            loose = candidate
        elif candidate is not plain:
            strict = candidate
    finalists = [strict] if loose is None else [strict, loose]
    racing = {candidate.name: candidate for candidate in (plain, *finalists)}
    second = times_of(list(racing.values()), prompts[half:], request)
    to_plain = {}
    for candidate in finalists:
        to_plain[candidate.name] = ratio_of_sums(second[PLAIN], second[candidate.name])
    to_strict = None if loose is None else ratio_of_sums(second[strict.name], second[loose.name])
    return Finding(screened, strict, loose, to_plain, to_strict)


def times_of(
    candidates: Sequence[Candidate], prompts: Prompts, request: dict[str, Any]
) -> dict[str, list[float]]:
    """Seconds of every candidate on every prompt that none of them answered with a loop."""
    racing = [
        contender(candidate.name, candidate.decoder, request, any_engine=True)
        for candidate in candidates
    ]
    laps, _ = without_loops(race(racing, [[ids] for ids in prompts]))
    seconds = {}
    for candidate in candidates:
        seconds[candidate.name] = [lap[candidate.name][0].seconds for lap in laps]
    return seconds


class Candidates:
    """What `gistgate tune` may choose from, made of parts that are loaded once."""

    def __init__(self, target: Target, options: DecodeOptions) -> None:
        self.target = target
        self.builder = Builder(target.model, target.tokenizer, options).loaded()
        self.refused = ""  # why the gate's certificate could not take part, as a clause

    def all_of(self, prompting: PromptFile) -> list[Candidate]:
        """Plain decoding, what the gate's certificate permits for such prompts, and strict decoding
        with every K and the drafters of both.
        """
        certified: list[Candidate] = []
        try:
            certified = self.certified(prompting)
        except UserError as error:
            self.refused = str(error)
        drafters = ["lookup"] if self.builder.draft is None else [MODEL, "lookup"]
        drafters += [each.certificate.drafter for each in certified if each.certificate]
        strict = []
        for drafter in dict.fromkeys(drafters):
            for block in BLOCKS:
                name = f"strict {drafter} K={block}"
                strict.append(Candidate(name, self.strict(drafter, block)))
        return [Candidate(PLAIN, self.strict(NONE, 0)), *strict, *certified]

    def strict(self, drafter: str, block: int) -> Decoder:
        """A strict decoder; only drafters that can end their drafts learn when to."""
        builder = self.builder
        sources = builder.sources
        if drafter not in STOPPING:
            sources = replace(sources, stopping=None)
        choice = Choice(STRICT, {}, block, drafter)
        return builder.assemble(choice, make_drafter(drafter, sources), **builder.shared)

    def certified(self, prompting: PromptFile) -> list[Candidate]:
        """The settings of the gate's certificate that keep the budget, each once; UserError where
        it does not hold for these parts and prompts.
        """
        builder = self.builder
        gate = builder.gate
        if gate is None or gate.certificate is None:
            raise UserError("Of the gate nothing is certified for these models. Calibrate it.")
        wish = builder.options.wish
        certificate = usable(gate.certificate, wish)
        loosest = certificate.point(wish.budget)
        if loosest is None:
            raise UserError(
                f"The gate has {certificate.refusal(wish.budget, wish.confidence)}. Ask for a"
                " certified budget."
            )
        # Points of several budgets may have one setting.
        candidates: dict[str, Candidate] = {}
        for point in certificate.points:
            if point.keeps(loosest.budget):
                settings = ", ".join(f"{name} {value}" for name, value in point.settings.items())
                drafting = f"{certificate.drafter} K={certificate.block}"
                name = f"{certificate.rule} {settings}, {drafting}"
                narrow = replace(certificate, points=(point,), headline_budget=point.budget)
                built = builder.certified(narrow, is_tuned=True)
                built.coverage.meet(prompting.ask(certificate.ask, self.target))
                candidates[name] = Candidate(name, built.decoder, narrow)
        return list(candidates.values())
