"""Where everything lies, relative to the project's folder, which is the working directory of every
stage.
"""

from pathlib import Path
from typing import Any

import yaml

from gistgate.core.files import read_text
from gistgate.core.utils import UserError

PARAMS = Path("params.yaml")
SCRATCH = Path(".scratch")  # finished pieces of unfinished work; not in Git

DATA = Path("data")
TASKS = DATA / "tasks"
WORLD = DATA / "world"
PROMPTS = DATA / "prompts"
LEARNED = PROMPTS / "problems.json"  # hashes of the training problems, which gates carry with them
REFERENCE = DATA / "reference"  # strict answers, one .jsonl file for each split, as in PROMPTS
MISMATCHES = DATA / "mismatches"
LABELS = DATA / "labels"
FEATURES = DATA / "features"
SPANS = DATA / "spans"  # labels of whole spans of draft tokens, for the rule `judge`

MODELS = Path("models")
PAIRS = MODELS / "pairs"  # one .yaml file for each pair
EMBEDDED = MODELS / "embedded"  # the trained pair: `target` and `draft`
PAIR_REPORT = MODELS / "pair.json"
DRAFT = (
    MODELS / "draft"
)  # the draft that the stage `draft` trains, where the pair's file asks for it
VOCABULARY = DRAFT / "vocabulary.json"  # tokens that it may propose
DRAFT_REPORT = MODELS / "draft.json"
PILOT = MODELS / "pilot"
HEADS = MODELS / "heads"
DATASTORE = MODELS / "datastore"
SEGMENTS = MODELS / "segments"
SEGMENTS_EXPORT = MODELS / "segments-export"
COUNTS = MODELS / "counts.safetensors"  # refused pairs of tokens, for the rule `csd`
EXPORT = MODELS / "export"

REPORTS = Path("reports")


def prompts_of(split: str) -> Path:
    """The prompts of a split."""
    return PROMPTS / f"{split}.jsonl"


def reference_of(split: str) -> Path:
    """The strict answers to the prompts of a split."""
    return REFERENCE / f"{split}.jsonl"


def calibration_file(method: str) -> Path:
    """Where the calibration of a method is written."""
    return REPORTS / "calibration" / f"{method}.json"


def records_folder(method: str) -> Path:
    """Where the records of a method's tested settings lie."""
    return REPORTS / "records" / method


def evaluation_folder(method: str) -> Path:
    """Where lm-eval's verdict on a method lies."""
    return REPORTS / "evaluation" / method


def read_yaml(path: Path) -> Any:
    """The content of a YAML file; an empty file is an empty block."""
    try:
        content = yaml.safe_load(read_text(path))
    except (yaml.YAMLError, ValueError) as error:
        why = " ".join(str(error).split())
        raise UserError(f"{path} is not valid YAML ({why}). Mend the line it names.") from error
    return {} if content is None else content
