"""Made-up feature files in which a direction of the hidden state decides, or nothing does."""

from pathlib import Path

import torch

from gistgate.core.files import save_tensors

WIDTH = 12


def write_features(
    folder: Path,
    *,
    policy: int,
    problems: int = 60,
    per_problem: int = 25,
    shuffled: bool = False,
    told: bool = False,
) -> None:
    """Two shards of rows; a third of the rows are soft.

    `shuffled` cuts the tie between states and labels; `told` adds draft features from which labels
    can be told.
    """
    generator = torch.Generator().manual_seed(policy)
    num = problems * per_problem
    state = torch.randn(num, WIDTH, generator=generator) * 4 + 1
    direction = torch.linspace(-1, 1, WIDTH)
    logit = (state - 1) @ direction * 2 + 4
    label = (torch.rand(num, generator=generator) < logit.sigmoid()).float()
    third = torch.arange(num) % 3 == 0
    label = torch.where(third, logit.sigmoid(), label)
    if shuffled:
        label = label[torch.randperm(num, generator=generator)]
    table = {
        "h_tok:post": state,
        "scalars": torch.randn(num, 8, generator=generator),
        "problem": torch.arange(num) // per_problem,
        "policy": torch.full((num,), policy, dtype=torch.int8),
        "position": torch.arange(num) % per_problem,
        "kept": label,
        "kl": torch.rand(num, generator=generator),
    }
    if told:
        table["draft"] = torch.stack(
            [label * 4 - 2, *torch.randn(2, num, generator=generator)], dim=-1
        )
    half = num // 2
    for index, part in enumerate([slice(0, half), slice(half, num)]):
        save_tensors(
            folder / f"rows-{index:05d}.safetensors",
            {name: column[part] for name, column in table.items()},
        )
