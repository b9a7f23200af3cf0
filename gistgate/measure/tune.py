"""Which certified setting is fastest on this machine. The fastest of many noisy times looks faster
than it is, so half of the prompts picks a strict and a certified candidate, and the other half
alone says whether the latter wins."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gistgate.core.decoder import Decoder
from gistgate.core.drafter import Drafter
from gistgate.core.utils import UserError
from gistgate.coverage.certificate import Certificate, OperatingPoint, check_parts, load_certificate
from gistgate.coverage.choose import MODEL, NONE, STRICT, Choice, certified_point
from gistgate.measure.speed import contender, race, without_loops
from gistgate.measure.statistics import Interval, ratio_of_sums
from gistgate.models.build import STOPPING, Sources, assemble, binding_of, load_gate, make_drafter
from gistgate.models.loading import Target, load_draft
from gistgate.models.options import DecodeOptions, PromptFile

PLAIN = "plain"
FEWEST = 4  # prompts without which two halves say nothing
BLOCKS = (2, 4, 8)  # K of the strict candidates


@dataclass(frozen=True)
class Candidate:
    """One way of decoding that loses at most what was asked for."""

    name: str
    decoder: Decoder
    certificate: Certificate | None = None  # None for plain and strict decoding, which lose nothing
    point: OperatingPoint | None = None  # the certified setting


@dataclass(frozen=True)
class Finding:
    """What the race showed."""

    screened: Mapping[
        str, float
    ]  # speed of every candidate against plain decoding on the first half of the prompts
    strict: Candidate  # the fastest strict candidate of the first half
    loose: (
        Candidate | None
    )  # the fastest certified candidate of the first half; None where nothing is certified
    to_plain: Mapping[str, Interval]  # speed of these two against plain decoding on the second half
    to_strict: (
        Interval | None
    )  # speed of the certified one against the strict one on the second half

    @property
    def winner(self) -> Candidate | None:
        """The certified candidate, if it is faster than strict and plain decoding beyond doubt;
        else None.
        """
        if self.loose is None or self.to_strict is None:
            return None
        return (
            self.loose if min(self.to_strict.low, self.to_plain[self.loose.name].low) > 1 else None
        )


def tune(
    candidates: Sequence[Candidate], prompts: Sequence[Sequence[int]], **request: Any
) -> Finding:
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

    def fastest(some: Sequence[Candidate]) -> Candidate | None:
        return max(some, key=lambda one: screened[one.name], default=None)

    plain = next(one for one in candidates if one.name == PLAIN)
    strict = fastest([one for one in candidates if one.point is None and one is not plain]) or plain
    loose = fastest([one for one in candidates if one.point is not None])
    finalists = [strict, *([loose] if loose else [])]
    second = times_of(
        list({one.name: one for one in [plain, *finalists]}.values()), prompts[half:], request
    )
    to_plain = {one.name: ratio_of_sums(second[PLAIN], second[one.name]) for one in finalists}
    to_strict = ratio_of_sums(second[strict.name], second[loose.name]) if loose else None
    return Finding(screened, strict, loose, to_plain, to_strict)


def times_of(
    candidates: Sequence[Candidate], prompts: Sequence[Sequence[int]], request: dict[str, Any]
) -> dict[str, list[float]]:
    """Seconds of every candidate on every prompt that none of them answered with a loop."""
    field = [contender(one.name, one.decoder, request, any_engine=True) for one in candidates]
    laps, _ = without_loops(race(field, [[ids] for ids in prompts]))
    return {one.name: [lap[one.name][0].seconds for lap in laps] for one in candidates}


class Candidates:
    """What `gistgate tune` may choose from, made of parts that are loaded once."""

    def __init__(self, target: Target, options: DecodeOptions, asking: PromptFile) -> None:
        self.target = target
        self.options = options
        self.asking = asking
        model = target.model
        tokenizer = target.tokenizer
        draft = options.draft
        self.draft = (
            None if draft is None else load_draft(draft, model, tokenizer, **options.lighter)
        )
        self.gate = load_gate(options.gate, model, self.draft, tokenizer)
        self.sources = Sources(
            model, tokenizer, self.draft, options.datastore, options.corpus, options.stop_drafting
        )
        self.refused: list[str] = []  # why certificates could not take part, a sentence for each

    def all_of(self, certificates: Sequence[str]) -> list[Candidate]:
        """Plain decoding, what the certificates permit, and strict decoding with every K and the
        drafters of both.
        """
        certified = [one for place in certificates for one in self.certified(place)]
        own = [MODEL, "lookup"] if self.draft is not None else ["lookup"]
        strict = [
            Candidate(
                f"strict {drafter} K={block}", self.decoder(Choice(STRICT, {}, block, drafter))
            )
            for drafter in dict.fromkeys(
                [*own, *(one.certificate.drafter for one in certified if one.certificate)]
            )
            for block in BLOCKS
        ]
        return [Candidate(PLAIN, self.decoder(Choice(STRICT, {}, 0, NONE))), *strict, *certified]

    def drafter(self, name: str) -> Drafter | None:
        """A drafter; only those that can end their drafts learn when to."""
        return make_drafter(
            name, self.sources if name in STOPPING else replace(self.sources, stopping=None)
        )

    def decoder(self, choice: Choice) -> Decoder:
        """The decoder of a choice; a strict one asks no gate."""
        gate: Any = None if choice.rule == STRICT else self.gate
        drafter = self.drafter(choice.drafter)
        return assemble(
            self.target.model,
            self.target.tokenizer,
            choice,
            drafter,
            gate,
            engine=self.options.engine,
        )

    def certified(self, place: str) -> Iterator[Candidate]:
        """The settings of one certificate that keep the budget and hold for these parts and
        requests, each once.
        """
        certificate = load_certificate(place)
        gate = self.gate if certificate.scope.get("gate") is not None else None
        used: dict[str, Any] = {"engine": self.options.engine, "guards": self.options.guards}
        try:
            used |= {
                "drafting": binding_of(self.drafter(certificate.drafter)),
                "settings": certificate.fixed,
            }
            used["data"] = self.sources.behind(certificate.drafter)
            check_parts(
                certificate, gate, self.target.model, self.draft, self.target.tokenizer, **used
            )
            self.asking.check(certificate, self.target)
        except UserError as error:
            self.refused.append(f"{place}: {error}")
            return
        # A certificate that somebody names may be about any score, the one beside the gate is about
        # the task's own.
        asked = (
            self.options
            if str(place) == str(self.options.gate)
            else replace(self.options, certificate=place)
        )
        most = certified_point(asked, certificate)
        if most is None:
            self.refused.append(f"{place}: nothing in it is certified for the budget.")
            return
        within = [point for point in certificate.certified if point.budget <= most.budget + 1e-9]
        for point in {repr(point.settings): point for point in within}.values():
            settings = ", ".join(f"{name} {value}" for name, value in point.settings.items())
            name = f"{certificate.rule} {settings}, {certificate.drafter} K={certificate.block}"
            choice = Choice(
                certificate.rule, dict(point.settings), certificate.block, certificate.drafter
            )
            yield Candidate(name, self.decoder(choice), certificate, point)
