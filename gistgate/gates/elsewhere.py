"""A gate that meets other weights of the architecture that it was trained for, such as a quantised copy's original.

Its features keep their widths but not their meaning, so that nothing is known about its errors until it is calibrated
on these weights.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from gistgate.certificates.certificate import Proof
from gistgate.gates.config import GateConfig
from gistgate.identity import check_shape, has_other_weights, identify_model, lightening

USUAL = {"--rule": "autojudge", "--drafter": "model"}
"""What `gistgate calibrate` takes for a gate where nothing is named."""
STANDS_FOR = {
    "TASK": "the task that judges",
    "TARGET": "a folder or file with the target",
    "DRAFT": "a folder or file with the draft",
    "VOCABULARY": "the file of the draft's vocabulary",
    "POLICY": "the file of fit-draft that ended the drafts",
}
"""Words in the place of what only the user knows."""
UNFITTED = {"joint": False, "points": [[0.0, 0.0], [1.0, 1.0]]}
"""What a policy binds besides its number where that is all of it: the draft's probability is taken as it is."""


def strange_roles(
    config: GateConfig, target: PreTrainedModel | None, draft: PreTrainedModel | None
) -> dict[str, PreTrainedModel]:
    """The partners, by role, whose weights are known to differ from those that the gate was trained with.

    Raises:
        UserError: a partner has another architecture or size.
    """
    strange = {}
    for role, expected, model in (("target", config.target, target), ("draft", config.draft, draft)):
        if expected is None or model is None:
            continue
        found = identify_model(model)
        check_shape(role, expected, found, rounded=False)  # rounded weights are other weights
        if has_other_weights(expected, found):
            strange[role] = model
    return strange


def until_certified(
    folder: Path,
    config: GateConfig,
    proof: Proof | None,
    target: PreTrainedModel | None,
    draft: PreTrainedModel | None,
    roles: Sequence[str],
) -> str:
    """The clause that says which weights differ and which command certifies the gate on them.

    Args:
        folder: the gate's.
        config: the gate's.
        proof: the proof beside the gate, which is about other weights; it still names rule, drafter and K.
        target, draft: the models that are served.
        roles: those of them whose weights differ.
    """
    options = {
        "--task": task_of(config),
        "--gate": str(folder),
        **of_models(config, target, draft),
        **({} if proof is None else of_proof(proof)),
    }
    consent = ["--allow-code"] if config.labels.get("code") else []
    command = shlex.join(["gistgate", "calibrate", *(text for pair in options.items() for text in pair), *consent])
    rounded = rounding(config, draft)
    legend = ", ".join(f"{word}: {meaning}" for word, meaning in STANDS_FOR.items() if word in options.values())
    return (
        f"the gate was trained with other weights of the same architecture ({' and '.join(roles)}), so every token is "
        f"verified strictly until `{command}` has certified it here"
        + (f" ({legend})" if legend else "")
        + (f"; or load the draft {rounded}, as in training" if rounded else "")
    )


def rounding(config: GateConfig, draft: PreTrainedModel | None) -> str | None:
    """How the draft has to be loaded to be rounded as in training; None where it is, and where nobody knows."""
    if draft is None or config.draft is None or config.draft.quantisation == getattr(draft, "quantised", None):
        return None
    return lightening("quantisation", config.draft.quantisation)


def task_of(config: GateConfig) -> str:
    """The task whose labels taught the gate; a word in its place where several did, or where nobody knows."""
    task = str(config.labels.get("task", "TASK"))
    return "TASK" if "," in task else task


def of_models(config: GateConfig, target: PreTrainedModel | None, draft: PreTrainedModel | None) -> dict[str, str]:
    """The options that load these models, the draft as light as it is."""
    models = {"--target": target, "--draft": draft}
    options = {name: place_of(model, name) for name, model in models.items() if model is not None}
    trained = None if config.draft is None or draft is None else config.draft.quantisation
    if (kind := getattr(draft, "quantised", None)) or trained:
        options["--quantise-draft"] = str(kind or "none")
    bound = config.draft if draft is None else None
    if getattr(draft, "subset", None) or (bound is not None and bound.draft_vocabulary):
        options["--draft-vocabulary"] = getattr(draft, "subset_file", None) or "VOCABULARY"
    return options


def place_of(model: PreTrainedModel, option: str) -> str:
    """Hub id, folder or GGUF file of a model; a word in its place where nobody knows."""
    name = getattr(model, "gguf_file", None) or model.config.name_or_path
    is_bare = Path(name).is_dir() and not (Path(name) / "config.json").is_file()  # of a GGUF file of unknown name
    return option.lstrip("-").upper() if not name or is_bare else str(name)


def of_proof(proof: Proof) -> dict[str, str]:
    """The options that calibrate the same way of decoding again, without those that a gate brings along."""
    drafting = proof.scope.get("drafting")
    ends = {"--stop-drafting": ends_of(drafting)} if drafting else {}
    options = {"--rule": proof.rule, "--drafter": proof.drafter, **ends, "--block": str(proof.block)}
    return {name: value for name, value in options.items() if USUAL.get(name) != value}


def ends_of(drafting: Any) -> str:
    """A policy as the option takes it: its one number, or a word in place of its file, whose name no proof keeps."""
    stopping = drafting.get("stopping") if isinstance(drafting, dict) else None
    if isinstance(stopping, dict) and stopping.items() >= UNFITTED.items():
        return str(stopping.get("floor"))
    return "POLICY"
