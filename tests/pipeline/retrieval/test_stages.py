"""What the retrieval stages share: drafters by id, methods by file, what a certificate is bound to, and speeds."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from pipeline.retrieval.benchmark import ratios

from gistgate.core.files import fingerprint, read_json_lines, write_json_lines
from gistgate.core.utils import UserError
from gistgate.drafters import DRAFTERS
from gistgate.rules import RULES
from pipeline import retrieval as texts
from pipeline.decode import files_behind, make_drafter
from pipeline.params import read_retrieval_params
from pipeline.paths import DATASTORE
from pipeline.retrieval import RETRIEVAL, evaluate
from tests.architectures import greedy, pair, prompts
from tests.drafters.proposing import decoded, wanted
from tests.retrieval.test_sen import store_of

TRAIN = prompts(5, 17, 2, 10)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with training texts, and files of other splits that nobody can read."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pipeline/studies/retrieval").mkdir(parents=True)
    (tmp_path / "pipeline/studies/retrieval/params.yaml").write_text("choice: {cost: 0.1}")
    rows = [{"id": f"train-{place}", "ids": prompt} for place, prompt in enumerate(TRAIN)]
    write_json_lines(texts.PROMPTS, rows)
    answers = [{"id": row["id"], "ids": greedy("llama", tuple(row["ids"]), 40)} for row in rows]
    write_json_lines(texts.ANSWERS, answers)
    for other in ("calibration", "development", "test"):
        for kind in ("prompts", "reference"):
            (tmp_path / f"data/{kind}/{other}.jsonl").write_text("nobody reads this")
    return tmp_path


def tiny(kind: str = "llama") -> SimpleNamespace:
    return SimpleNamespace(target=pair(kind)[0], draft_model=pair(kind)[1])


@pytest.mark.parametrize("name", RETRIEVAL)
def test_drafters_by_id_know_training_texts_alone_and_stay_strict(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    def reader(path: Path) -> list:
        assert Path(path).name == "train.jsonl", f"{path} was read"
        return read_json_lines(path)

    monkeypatch.setattr(texts, "read_json_lines", reader)
    store_of("llama", TRAIN).save(DATASTORE)
    assert [one.ids for one in decoded(make_drafter(tiny(), name), "llama", TRAIN)] == wanted("llama", TRAIN)


@pytest.mark.parametrize("name", [name for name in RETRIEVAL if name.startswith("sen")])
def test_a_datastore_that_is_missing_or_another_target_s_is_named(name: str, folder: Path):
    with pytest.raises(UserError, match="models/datastore is missing. Run `make retrieval`"):
        make_drafter(tiny(), name)
    store_of("llama", TRAIN).save(DATASTORE)
    with pytest.raises(UserError, match="does not fit the target"):
        make_drafter(tiny("qwen2"), name)


def test_an_unknown_drafter_is_named_with_those_that_exist():
    with pytest.raises(UserError, match="no drafter 'rest'. Known drafters: .*corpus, hybrid, lookup, .*sen"):
        make_drafter(tiny(), "rest")


def test_a_certificate_is_bound_to_what_the_drafter_knows(folder: Path):
    """`binding_of` and the names of decoded settings hash these files."""
    store_of("llama", TRAIN).save(DATASTORE)
    assert files_behind("model") == files_behind("lookup") == []
    before = {name: fingerprint(*files_behind(name)) for name in RETRIEVAL}
    store_of("llama", TRAIN[:2]).save(DATASTORE)
    write_json_lines(texts.ANSWERS, read_json_lines(texts.ANSWERS)[1:])
    assert all(fingerprint(*files_behind(name)) != before[name] for name in RETRIEVAL)
    before = fingerprint(*files_behind("choice"))
    (folder / "pipeline/studies/retrieval/params.yaml").write_text("choice: {cost: 0.2}")
    assert fingerprint(*files_behind("choice")) != before


def test_the_choice_reads_its_costs(folder: Path):
    (folder / "pipeline/studies/retrieval/params.yaml").write_text(
        "choice: {verify: 2.0, cost: 0.25, min_match: 3, block: 4}"
    )
    made = make_drafter(tiny(), "choice")
    assert [option.cost for option in made.options] == [0, 0, 0.25] and made.options[1].min_match == 3
    assert made.verify == 2 and made.block == 4
    (folder / "pipeline/studies/retrieval/params.yaml").write_text("choice: {verify: 0}")
    with pytest.raises(UserError, match="verify"):
        make_drafter(tiny(), "choice")


def test_the_file_names_drafters_and_rules_that_exist(tmp_path: Path):
    methods = read_retrieval_params(Path(__file__).parents[3] / "pipeline/studies/retrieval/params.yaml").by_name
    known = {*DRAFTERS, *RETRIEVAL}
    assert all(method.drafter in known and method.rule in RULES for method in methods.values())
    soft = methods["sen-sense"]
    assert soft.knob == "gamma" and set(soft.grid) < set(RULES["sense"].grid) and methods["sen-exact"].knob is None
    (tmp_path / "params.yaml").write_text("methods: {free: {a: {rule: sense, drafter: sen}}}")
    assert read_retrieval_params(tmp_path / "params.yaml").by_name["a"].grid == RULES["sense"].grid
    (tmp_path / "params.yaml").write_text("methods: {free: {a: {rule: sense, drafters: sen}}}")
    with pytest.raises(UserError, match="drafters"):
        read_retrieval_params(tmp_path / "params.yaml")


def test_stages_that_make_drafters_depend_on_the_texts_behind_them():
    stages = yaml.safe_load((Path(__file__).parents[3] / "pipeline/studies/retrieval/dvc.yaml").read_text())["stages"]
    making = {
        name: stage["deps"]
        for name, stage in stages.items()
        if "pipeline/studies/retrieval/drafters.py" in stage["deps"]
    }
    assert set(making) == {"calibrate", "evaluate", "benchmark"}
    for deps in making.values():
        assert "models/datastore" in deps
        for path in files_behind("corpus"):
            assert {str(path), str(path.parent)} & set(deps)


def test_speeds_are_ratios_of_summed_seconds():
    times = {
        name: {"seconds": [[a, a], [3 * a, a]], "tokens": [10, 14], "target_forwards": [5, 7]}
        for name, a in (("plain", 2.0), ("sen-exact", 1.0))
    }
    found = ratios(times)
    assert found["plain"]["tokens_per_second"] == pytest.approx(2 * 24 / 12)
    assert found["sen-exact"]["vs_plain"]["mean"] == pytest.approx(2) and found["plain"]["vs_sen-exact"]["mean"] == 0.5
    assert found["plain"]["mean_accepted_length"] == 2 and "vs_plain" not in found["plain"]


def test_accuracy_is_compared_on_the_same_prompts(folder: Path):
    write_json_lines(evaluate.PLAIN, [{"id": "b", "correct": 0.0}, {"id": "a", "correct": 1.0}])
    assert evaluate.plain_scores([{"id": "a"}, {"id": "b"}]) == [1.0, 0.0]
    with pytest.raises(UserError, match="has no 'c'"):
        evaluate.plain_scores([{"id": "c"}])
