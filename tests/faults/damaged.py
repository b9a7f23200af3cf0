"""Run every damaged input through the command line and count the answers that are not one clear sentence.

python -m tests.faults.damaged
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from tqdm import tqdm

from tests.faults import results, running
from tests.faults.cases import cases
from tests.faults.world import build


def main() -> None:
    """Count, print what is unclear, and leave with status 1 where anything is."""
    torch.set_num_threads(1)
    unclear = {}
    with tempfile.TemporaryDirectory(prefix="gistgate-faults-") as place:
        world = Path(place) / "world"
        world.mkdir()
        build(world)
        for number, case in enumerate(tqdm(cases(), unit="case")):
            found = running.complaint(case, world, Path(place) / str(number))
            if found is not None:
                unclear[case.id] = found
    for name, found in unclear.items():
        print(f"{name}: {found}")
    results.add(damaged_cases=len(cases()), damaged_unclear=len(unclear))
    raise SystemExit(int(bool(unclear)))


if __name__ == "__main__":
    main()
