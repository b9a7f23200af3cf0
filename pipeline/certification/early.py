"""Say early what publishing would refuse: whether calibration prompts were judged before, and which draw was not.

The stage `prompts` asks this hours before a calibration, or `make publish`, would refuse the run. It imports this
module by name, because what is said here changes no prompt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gistgate.certificates.ledger import Ledger, Look, fingerprint_of, hash_of
from gistgate.certificates.looks import PUBLISHED, level
from gistgate.certificates.scores import TaskScore
from gistgate.errors import UserError
from gistgate.integrations.lm_eval.prompts import Prompt, PromptMaker, hashes_of
from pipeline.certification.further import calibration_of
from pipeline.certification.looks import choice_of, claim_of
from pipeline.common.code import CERTIFYING, code_fingerprint
from pipeline.params import Params

FURTHEST = 20
"""Draws behind the present one among which a free one is sought."""


def warning(maker: PromptMaker, params: Params, calibration: Sequence[Prompt], taken: set[str]) -> str | None:
    """One sentence where the published ledger would refuse this run; None where it is a first look or a repetition.

    Args:
        maker: makes the prompts of further draws.
        params: the run's.
        calibration: the prompts that are about to be judged.
        taken: problems of the test prompts.
    """
    ledger = Ledger.read(PUBLISHED)
    names = judged(ledger, maker, params, calibration)
    if not names:
        return None
    free = next(
        (draw for draw, found in further(maker, params, taken) if not judged(ledger, maker, params, found)), None
    )
    rest = "no further draw is free" if free is None else f"prompts.draw: {free} is free"
    return (
        f"The calibration prompts of prompts.draw: {params.prompts.draw} were judged before for {', '.join(names)}, "
        f"with another choice or by other code ({PUBLISHED}), so that publishing this run will be refused unless it "
        f"tests the very same settings; {rest}."
    )


def judged(ledger: Ledger, maker: PromptMaker, params: Params, calibration: Sequence[Prompt]) -> list[str]:
    """The methods for which a ledger has no error left at these prompts and holds no look of this choice and code."""
    hashes, error = [hash_of(prompt["ids"]) for prompt in calibration], 1 - params.calibrate.confidence
    problems = hashes_of(maker.problem(prompt["doc"]) for prompt in calibration).split()
    prompts, code = fingerprint_of(hashes), code_fingerprint(*sorted(CERTIFYING))
    wanted = 1 - level(params.calibrate.confidence, params.calibrate.looks)

    def is_refused(name: str) -> bool:
        look = Look(claim_of(params, TaskScore.id, name), prompts, code, "", wanted, choice_of(params, name))
        same = (look.claim, look.prompts, look.code, look.choice)
        repeated = any((old.claim, old.prompts, old.code, old.choice) == same for old in ledger.looks)
        return not repeated and not ledger.affords(look, hashes, error, problems)

    return [name for name in params.methods if is_refused(name)]


def further(maker: PromptMaker, params: Params, taken: Iterable[str]) -> Iterator[tuple[int, list[Prompt]]]:
    """The calibration prompts of the draws behind the present one, until there are too few."""
    for draw in range(params.prompts.draw + 1, params.prompts.draw + 1 + FURTHEST):
        try:
            yield draw, calibration_of(maker, params, draw, taken)
        except UserError:
            return
