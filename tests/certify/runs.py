"""Logs of runs as lm-eval writes them, with right and wrong answers that a test chooses."""

import hashlib
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

DATE = "2026-11-29T10-00-00.000001"


def write_samples(
    folder: Path,
    task: str = "sums",
    n: int = 200,
    wrong: Collection[int] = (),
    date: str = DATE,
    shots: int = 5,
    **changes: Any,
) -> Path:
    """A file of samples with two filters; the second finds every answer right. `changes` replace
    entries of every row."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for place in range(n):
        for name in ("strict-match", "flexible-extract"):
            right = name == "flexible-extract" or place not in wrong
            row = {
                "doc_id": place,
                "filter": name,
                "metrics": ["exact_match", "words"],
                "filtered_resps": [str(place if right else -1)],
                "doc_hash": hash_of(f"{task} {place}"),
                "prompt_hash": hash_of(f"{shots} {task} {place}"),
                "target_hash": hash_of(str(place)),
                "exact_match": float(right),
                "words": 12,
            }
            rows.append({**row, **changes})
    path = folder / f"samples_{task}_{date}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_results(folder: Path, date: str = DATE, **entries: Any) -> None:
    """The results that lie beside samples."""
    results = {"config": {"model_args": f"pretrained={folder.name}"}, **entries}
    (folder / f"results_{date}.json").write_text(json.dumps(results))


def hash_of(text: str) -> str:
    """As lm-eval hashes texts."""
    return hashlib.sha256(text.encode()).hexdigest()
