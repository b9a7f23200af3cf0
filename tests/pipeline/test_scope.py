"""A certificate names everything that decides what is decoded."""

from types import SimpleNamespace

import pytest

import pipeline.retrieval  # noqa: F401 (adds the study's drafters)
from gistgate.certificates.calibration import task_hash
from gistgate.core.files import fingerprint, write_text
from gistgate.core.identity import identify_model, model_scope, tokenizer_scope
from gistgate.lm_eval.files import files_of
from gistgate.tasks.task import Prompting
from pipeline.decode import KNOWN
from pipeline.outcomes import scope_of
from pipeline.pair.pair import Pair
from pipeline.paths import prompts_of
from tests.pipeline.parameters import parameters
from tests.tiny import byte_tokenizer, tiny_pair

MODELS = {
    "model": True,
    "tree": True,
    "corpus": False,
    "lookup": False,
    "sen": False,
}
TASK = SimpleNamespace(
    name="sums", metric="exact", stops=[], max_new_tokens=5, prompting=Prompting(), files=()
)


def test_it_names_the_draft_of_every_drafter_that_has_one_and_what_others_know(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for file in [*KNOWN["corpus"], *KNOWN["sen"], prompts_of("calibration")]:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("known")
    pair = Pair(*tiny_pair(), byte_tokenizer(), "tiny")
    method = {"rule": "fly", "knob": "theta", "grid": [0.1]}
    params = parameters(methods={name: {**method, "drafter": name} for name in MODELS})
    for name, has_model in MODELS.items():
        made = scope_of(params, name, pair, TASK)
        assert (made["draft"] == model_scope(identify_model(pair.draft))) is has_model
        assert (made.get("drafter_data") is not None) is (name in ("corpus", "sen"))
    KNOWN["sen"][0].write_text("something else")
    assert scope_of(params, "sen", pair, TASK)["drafter_data"] != made["drafter_data"]


def test_the_scope_of_the_model_drafter_is_what_it_was(tmp_path, monkeypatch):
    """Certificates that were made before have these entries and no other, but for how texts are
    divided and end.
    """
    monkeypatch.chdir(tmp_path)
    pair = Pair(*tiny_pair(), byte_tokenizer(), "tiny")
    method = {"rule": "fly", "block": 4, "knob": "theta", "grid": [0.1]}
    params = parameters(methods={"fly": method}, decoding={"batch_size": 8})
    write_text(prompts_of("calibration"), "[1]")
    assert scope_of(params, "fly", pair, TASK) == {
        "target": model_scope(identify_model(pair.target)),
        "draft": model_scope(identify_model(pair.draft)),
        **tokenizer_scope(byte_tokenizer(), ("encoding",)),
        "gate": None,
        "task": fingerprint(["sums", "exact", [], 5]),
        "prompts": fingerprint(prompts_of("calibration")),
        "stops": [],
        "rule": "fly",
        "prompting": {"num_fewshot": 0, "chat_template": False, "system": None},
        "drafter": "model",
        "ends": [2],
        "block": 4,
        "knob": "theta",
        "temperature": 0.0,
        "engine": "eager",
        "batching": {"rows": 8, "ragged": True},
        "guards": [],
    }


@pytest.mark.parametrize("changed", ["sums.yaml", "base.yaml", "judges/strict.py"])
def test_what_a_task_includes_and_the_python_beside_it_belong_to_it(changed, tmp_path, monkeypatch):
    """Also the Python behind an included file; modules of installed packages do not count."""
    monkeypatch.chdir(tmp_path)
    tasks = tmp_path / "data/tasks"
    write_text(
        tasks / "sums.yaml", "include: base.yaml\ntask: sums\ndoc_to_text: !function os.path.join\n"
    )
    write_text(tasks / "base.yaml", "process_results: !function judges.strict.score\n")
    write_text(tasks / "judges/strict.py", "def score(): return 1\n")
    files = files_of(tasks / "sums.yaml")
    names = [path.relative_to(tasks).as_posix() for path in files]
    assert names == ["sums.yaml", "base.yaml", "judges/strict.py"]
    assert files_of(tasks / "none.yaml") == []
    task = SimpleNamespace(**{**vars(TASK), "files": files})
    before = task_hash(task)
    write_text(tasks / changed, (tasks / changed).read_text() + "# changed\n")
    assert task_hash(task) != before
