"""Which certified setting is fastest on this machine. The fastest of many noisy times looks faster
than it is, so half of the prompts picks a strict and a certified candidate, and the other half
alone says whether the latter wins."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gistgate.build import Builder, assemble
from gistgate.core.decoder import Decoder
from gistgate.core.drafter import Drafter
from gistgate.core.utils import UserError
from gistgate.coverage.certificate import Certificate, OperatingPoint, load_certificate
from gistgate.coverage.choose import MODEL, NONE, STRICT, Choice, usable
from gistgate.coverage.covers import Difference, covers, joined, refusal
from gistgate.coverage.setup import Setup
from gistgate.measure.speed import contender, race, without_loops
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
    certificate: Certificate | None = None  # None for plain and strict decoding, which lose nothing
    point: OperatingPoint | None = None  # the certified setting


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
    plain = next(candidate for candidate in candidates if candidate.name == PLAIN)
    ranked = sorted(candidates, key=lambda candidate: -screened[candidate.name])
    strict = plain
    loose = None
    for candidate in reversed(ranked):
        if candidate.point is not None:
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
    candidates: Sequence[Candidate], prompts: Sequence[Sequence[int]], request: dict[str, Any]
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

    def __init__(self, target: Target, options: DecodeOptions, prompting: PromptFile) -> None:
        self.target = target
        self.prompting = prompting
        self.builder = Builder(target.model, target.tokenizer, options).loaded()
        self.refused: list[str] = []  # why certificates could not take part, a sentence for each

    def all_of(self, certificates: Sequence[str]) -> list[Candidate]:
        """Plain decoding, what the certificates permit, and strict decoding with every K and the
        drafters of both.
        """
        certified: list[Candidate] = []
        for place in certificates:
            certified += self.certified(place)
        drafters = ["lookup"] if self.builder.draft is None else [MODEL, "lookup"]
        drafters += [each.certificate.drafter for each in certified if each.certificate]
        strict = []
        for drafter in dict.fromkeys(drafters):
            for block in BLOCKS:
                choice = Choice(STRICT, {}, block, drafter)
                name = f"strict {drafter} K={block}"
                strict.append(Candidate(name, self.decoder(choice)))
        plain = Candidate(PLAIN, self.decoder(Choice(STRICT, {}, 0, NONE)))
        return [plain, *strict, *certified]

    def decoder(self, choice: Choice) -> Decoder:
        """The decoder of a choice; a strict one asks no gate."""
        gate = None if choice.rule == STRICT else self.builder.gate
        parts = (choice, self.drafter(choice.drafter), gate)
        engine = self.builder.options.engine
        return assemble(self.target.model, self.target.tokenizer, *parts, engine=engine)

    def drafter(self, name: str) -> Drafter | None:
        """A drafter; only those that can end their drafts learn when to."""
        sources = self.builder.sources
        if name not in STOPPING:
            sources = replace(sources, stopping=None)
        return make_drafter(name, sources)

    def certified(self, place: str) -> Iterator[Candidate]:
        """The settings of one certificate that keep the budget and hold for these parts and
        requests, each once.
        """
        certificate = load_certificate(place)
        options = self.builder.options
        # A certificate that somebody names may be about any score, the one beside the gate is about
        # the task's own.
        is_named = str(place) != str(options.gate)
        wish = replace(options.wish, names_certificate=is_named)
        points = usable(certificate, wish)
        point = points.point(wish.budget)
        choice = Choice(certificate.rule, {}, certificate.block, certificate.drafter)
        try:
            differences = self.differences(certificate, choice)
        except UserError as error:
            self.refused.append(f"{place}: {error}")
            return
        if differences:
            self.refused.append(f"{place}: {refusal(joined(differences))}")
        elif point is None:
            self.refused.append(f"{place}: nothing in it is certified for the budget.")
        else:
            # Points of several budgets may have one setting.
            by_setting: dict[str, OperatingPoint] = {}
            for candidate in points.points:
                if candidate.keeps(point.budget):
                    by_setting[repr(candidate.settings)] = candidate
            for point in by_setting.values():
                settings = ", ".join(f"{name} {value}" for name, value in point.settings.items())
                name = f"{certificate.rule} {settings}, {certificate.drafter} K={certificate.block}"
                decoder = self.decoder(replace(choice, settings=dict(point.settings)))
                yield Candidate(name, decoder, certificate, point)

    def differences(self, certificate: Certificate, choice: Choice) -> list[Difference]:
        """What the certificate does not cover of the loaded parts and the requests."""
        builder = self.builder
        gate = None if certificate.setup.gate is None else builder.gate
        drafter = self.drafter(choice.drafter)
        setup = builder.setup(certificate, replace(choice, settings=certificate.fixed), drafter)
        models = Setup.of(self.target.model, builder.draft, self.target.tokenizer, gate)
        ask = self.prompting.ask(certificate.ask, self.target)
        return [*covers(certificate, models), *covers(certificate, setup, ask)]
