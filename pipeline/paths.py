"""Where everything lies, relative to the project's folder, which is the working directory of every stage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from gistgate.core.files import read_text
from gistgate.core.utils import UserError

# ---- YAML files as plain data; `pipeline.run` reads them where nothing that checks types is installed.


class PlainLoader(yaml.SafeLoader):
    """YAML without aliases: a few nested ones stand for more data than a memory holds."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            raise yaml.composer.ComposerError(None, None, "aliases are not read; write the value out", event.start_mark)
        return super().compose_node(parent, index)


def read_yaml(path: Path) -> Any:
    """The content of a YAML file; an empty file is an empty block.

    Raises:
        UserError: the file is missing or no YAML.
    """
    text = read_text(path)
    try:
        content = yaml.load(text, Loader=PlainLoader)
        json.dumps(content, default=str).encode()
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, RecursionError) as error:
        problem = " ".join(str(error).split())[:300]
        raise UserError(f"{path} is not valid YAML ({problem}). Mend the line it names.") from error
    return {} if content is None else content


PARAMS = Path("params.yaml")
SCRATCH = Path(".scratch")
"""Finished pieces of unfinished work; not in Git."""

DATA = Path("data")
TASKS = DATA / "tasks"
DOCUMENTS_NOTE = TASKS / "documents.json"
"""The fingerprint of documents outside of the project that replace the task's own."""
WORLD = DATA / "world"
PROMPTS = DATA / "prompts"
LEARNED = PROMPTS / "problems.json"
"""Hashes of the training problems, which gates carry with them."""
REFERENCE = DATA / "reference"
"""Strict answers, one .jsonl file for each split, as in PROMPTS, and a .json file of how their slots were used."""
AGREEMENT = DATA / "agreement"
"""Which settings of the methods without a gate decide every block of the strict answers alike, by split."""
MISMATCHES = DATA / "mismatches"
LABELS = DATA / "labels"
FEATURES = DATA / "features"
SPANS = DATA / "spans"
"""Labels of whole spans of draft tokens, for the head `judge`."""

MODELS = Path("models")
PAIRS = MODELS / "pairs"
"""One .yaml file for each pair."""
EMBEDDED = MODELS / "embedded"
"""The trained pair: `target` and `draft`."""
PAIR_REPORT = MODELS / "pair.json"
PILOT = MODELS / "pilot"
HEADS = MODELS / "heads"
TABLE_MODELS = MODELS / "table"
"""Heads and pair counts that only the large table asks."""
DATASTORE = MODELS / "datastore"
SEGMENTS = MODELS / "segments"
DOMAIN = MODELS / "domain"
EXPORT = MODELS / "export"

REPORTS = Path("reports")
STUDIES = Path("pipeline/studies")
RESULTS = Path("docs/results")
"""Published results, in Git."""
BENCHMARK_RESULTS = Path("benchmarks/results")


def prompts_of(split: str) -> Path:
    """The prompts of a split."""
    return PROMPTS / f"{split}.jsonl"


def reference_of(split: str) -> Path:
    """The strict answers to the prompts of a split."""
    return REFERENCE / f"{split}.jsonl"
