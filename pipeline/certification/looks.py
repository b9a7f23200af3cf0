"""What a calibration tells the ledgers of looks before it decodes its calibration prompts."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gistgate.certificates.looks import Looks
from gistgate.certificates.scope import files_of
from gistgate.files import fingerprint
from gistgate.integrations.lm_eval.prompts import hashes_of
from pipeline.certification.outcomes import Setup
from pipeline.common.code import CERTIFYING, code_fingerprint
from pipeline.common.paths import PAIRS, TASKS
from pipeline.pairs.source import read_pair
from pipeline.params import Params

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


def looks_of(setup: Setup, name: str, study: Study = CORE) -> Looks:
    """What the method `name` tells the ledgers.

    Args:
        setup: the run; its calibration prompts are those that are about to be judged.
        name: a method of params.yaml, or a name of the study's own.
        study: who certifies it.
    """
    params = setup.params
    return Looks(
        claim=claim_of(params, setup.scorer.id, name, study),
        prompts=[prompt["ids"] for prompt in setup.prompts["calibration"]],
        error=1 - params.calibrate.confidence,
        code=code_fingerprint(*sorted({*CERTIFYING, *study.modules})),
        choice=choice_of(params, name, study.own),
        remedy=remedy(params),
        ready_made=read_pair(params.pair).training is None,
        problems=hashes_of(setup.task.problem(prompt["doc"]) for prompt in setup.prompts["calibration"]).split(),
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
    return fingerprint(kept, decoding, method and asdict(method), own, *asked, *data, code_fingerprint(CHOOSING))
