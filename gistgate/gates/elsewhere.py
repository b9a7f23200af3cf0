"""A gate that meets other weights of the architecture that it was trained for, such as a quantised copy's original.

Its features keep their widths but not their meaning, so that nothing is known about its errors until it is calibrated
on these weights.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from transformers import PreTrainedModel

from gistgate.certificates.certificate import Proof
from gistgate.gates.config import GateConfig
from gistgate.identity import check_shape, has_other_weights, identify_model


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
        check_shape(role, expected, found)
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
        proof: the proof beside the gate, which is about other weights; it still names a K.
        target, draft: the models that are served.
        roles: those of them whose weights differ.
    """
    models = {"--target": target, "--draft": draft}
    options = {name: model.config.name_or_path for name, model in models.items() if model is not None}
    if proof is not None:
        options["--block"] = str(proof.block)
    options = {"--task": str(config.labels.get("task", "TASK")), "--gate": str(folder), **options}
    command = shlex.join(["gistgate", "calibrate", *(text for pair in options.items() for text in pair)])
    return (
        f"the gate was trained with other weights of the same architecture ({' and '.join(roles)}), so every token is "
        f"verified strictly until `{command}` has certified it here"
    )
