"""The stages prompts, reference and evaluate on a tiny pair: strict answers with scores, certified
settings run.
"""

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}

from gistgate.core.files import read_json, read_json_lines, write_json, write_json_lines
from gistgate.core.utils import UserError
from pipeline.operating import operating_point
from pipeline.outcomes import SPLITS, TOGETHER, Setup, chunk_of, read_reference, scope_of
from pipeline.pair.pair import load_pair
from pipeline.paths import prompts_of, reference_of
from pipeline.stages import calibrate, evaluate, prompts, reference
from pipeline.task import load_task, read_prompts
from tests.pipeline.parameters import content, parameters
from tests.tiny import byte_tokenizer, save_pair, tiny_pair, write_task

REPORTS = Path("reports/evaluation")
PARAMS: dict[str, Any] = {
    "pair": "tiny",
    "task": "sums",
    "documents": "data",
    "prompts": {"train": 4, "development": 4, "calibration": 4, "guard": 2, "test": 5},
    "decoding": {"block": 4, "batch_size": 3, "workers": 1},
    "methods": {
        "exact": {"rule": "exact"},
        "fly": {"rule": "fly", "fixed": {"window": 6}, "knob": "theta", "grid": [1.0, 0.1]},
        "prob": {"rule": "prob", "knob": "r", "grid": [0.1, 0.001]},
        "random": {"rule": "random", "knob": "rate", "grid": [0.1, 1.0], "block": 3},
        "never": {"rule": "random", "knob": "rate", "grid": [0.1, 1.0]},
    },
}
slow = pytest.mark.slow


def calibrated(name: str, knob: float | None, scope: Any = None, **fixed: Any) -> None:
    budget = {
        "certified": knob is not None,
        "knob": knob,
        "fixed": None if knob is None else fixed,
        "bound": 0.01,
    }
    write_json(
        Path(f"reports/calibration/{name}.json"),
        {"budgets": {"0.03": budget}, "proof": {"scope": scope}},
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose prompts are drawn and whose methods are calibrated; nothing of it is
    changed.
    """
    folder = tmp_path_factory.mktemp("project")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        (folder / "data").mkdir()
        write_task(folder / "data")
        save_pair(folder / "models/tiny", *tiny_pair(), byte_tokenizer())
        roles = {
            role: {"model": str(folder / "models/tiny" / role)} for role in ("target", "draft")
        }
        pair = {
            role: {**source, "dtype": "float32", "device": "cpu"} for role, source in roles.items()
        }
        (folder / "models/pairs").mkdir()
        Path("models/pairs/tiny.yaml").write_text(yaml.safe_dump(pair))
        Path("params.yaml").write_text(yaml.safe_dump(content(**PARAMS)))
        prompts.main()
        params = parameters(**PARAMS)
        loaded = load_pair(params), load_task(params)
        scopes = {name: scope_of(params, name, *loaded) for name in PARAMS["methods"]}
        calibrated("fly", 0.1, scopes["fly"], window=2, strict_window=False)
        calibrated("prob", None, scopes["prob"])
        calibrated("random", 1.0, scopes["random"])
    return folder


@pytest.fixture
def project(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the project, in which the test runs."""
    folder = shutil.copytree(made, tmp_path / "project")
    monkeypatch.chdir(folder)
    return folder


@slow
def test_certified_settings_run_and_other_methods_run_strictly(project: Path) -> None:
    names = ("plain", "exact", "fly", "prob", "random")
    for name in names:
        evaluate.main(name)
    summaries = {name: read_json(REPORTS / name / "summary.json") for name in names}
    samples = {name: read_json_lines(REPORTS / name / "samples.jsonl") for name in names}
    told = [[summaries["prob"][key] for key in ("rule", "certified", "knob")]]
    told.append([summaries["random"][key] for key in ("block", "certified", "knob")])
    assert summaries["fly"]["settings"] == {"window": 2, "strict_window": False, "theta": 0.1}
    assert told == [["exact", False, None], [3, True, 1.0]]
    assert (
        summaries["plain"]["mean_accepted_length"] == 1 and summaries["random"]["loose_per_100"] > 0
    )

    # Strict decoding changes nothing, and samples pair up by document.
    texts = {
        name: [(sample["id"], sample["text"]) for sample in rows] for name, rows in samples.items()
    }
    assert texts["plain"] == texts["exact"] == texts["prob"] != texts["random"]
    assert [sample["id"] for sample in samples["fly"]] == [f"test-{index}" for index in range(5)]
    assert summaries["plain"]["cut"] == 5 and all(
        row["cut"] for row in samples["plain"]
    )  # random weights never stop
    assert all(summary["n"] == 5 for summary in summaries.values())
    statistics = summaries["exact"]["statistics"]
    assert statistics["forwards"] == sum(
        sample["statistics"]["forwards"] for sample in samples["exact"]
    )
    assert "seconds" not in statistics

    before = {path: path.read_bytes() for path in (REPORTS / "fly").iterdir()}
    evaluate.main("fly")
    assert {path: path.read_bytes() for path in (REPORTS / "fly").iterdir()} == before


@slow
def test_other_prompts_than_lm_evals_or_the_certificates_are_refused(project: Path) -> None:
    test, calibration = (read_json_lines(prompts_of(split)) for split in ("test", "calibration"))
    write_json_lines(prompts_of("calibration"), calibration[1:])
    with pytest.raises(
        UserError,
        match="Method 'fly': its certificate was made with another prompts",
    ):
        evaluate.main("fly")
    test[1]["ids"] = test[1]["ids"][:-1]
    write_json_lines(prompts_of("test"), test)
    with pytest.raises(UserError, match="out of date"):
        evaluate.main("plain")
    assert not REPORTS.exists()


def test_an_operating_point_needs_its_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    params = parameters(**PARAMS)
    with pytest.raises(UserError, match=r"fly\.json is missing"):
        operating_point(params, "fly")
    calibrated("fly", 0.1)
    with pytest.raises(UserError, match=r"says nothing about the budget 0\.02"):
        operating_point(replace(params, headline_budget=0.02), "fly")


@slow
def test_the_reference_answers_every_prompt_and_belongs_to_its_weights_and_prompts(
    project: Path,
) -> None:
    """DVC does not see weights that change in their folder; loose answers would be compared with
    older ones.
    """
    reference.main()
    setup = Setup(parameters(**PARAMS))
    for split in reference.SPLITS:
        rows = read_json_lines(reference_of(split))
        assert [row["id"] for row in rows] == [prompt["id"] for prompt in read_prompts(split)]
        assert all((row["finish"] == "length") == (len(row["ids"]) == 12) for row in rows)
        texts = [setup.pair.tokenizer.decode(row["ids"]) for row in rows]
        assert [row["score"] for row in rows] == [
            setup.task.score(prompt["doc"], text)
            for prompt, text in zip(read_prompts(split), texts, strict=True)
        ]
    asked = setup.prompts["calibration"]
    for others in (asked[1:], [{**asked[0], "ids": [*asked[0]["ids"], 7]}, *asked[1:]]):
        with pytest.raises(UserError, match="does not belong to|answers other prompts"):
            read_reference("calibration", others, setup.pair)
    with torch.no_grad():
        setup.pair.target.lm_head.weight += 1
    with pytest.raises(UserError, match="was made with other weights, another tokenizer or engine"):
        read_reference("calibration", asked, setup.pair)


@slow
def test_in_bfloat16_a_setting_that_accepts_nothing_gives_the_reference(
    project: Path, made: Path
) -> None:
    """Rounding depends on the batch there, so the reference comes in the pieces that calibration
    decodes.
    """
    file = Path("models/pairs/tiny.yaml")
    file.write_text(file.read_text().replace("float32", "bfloat16"))
    more = {
        **PARAMS,
        "documents": str(made),
        "prompts": {**PARAMS["prompts"], "development": 8, "calibration": 8},
    }
    Path("params.yaml").write_text(yaml.safe_dump(content(**more)))
    prompts.main()
    reference.main()
    params = parameters(**more)
    setup = Setup(params)
    decode = setup.outcomes("never", Path(".scratch")).loose
    size = chunk_of(params, "never", setup.pair.target.dtype)
    assert size == TOGETHER * params.decoding.batch_size
    for split in SPLITS:
        asked = setup.prompts[split]
        assert len(asked) > size
        found = [
            decode({"rate": 0.0}, asked[start : start + size], start)
            for start in range(0, len(asked), size)
        ]
        rows = read_reference(split, asked, setup.pair)
        assert [answer.ids for piece in found for answer in piece] == [row["ids"] for row in rows]


@slow
def test_single_requests_have_seconds_and_a_control_has_another_batch(project: Path) -> None:
    methods = {**PARAMS["methods"], "control": {"rule": "exact", "batch_size": 3}}
    more = {**PARAMS, "methods": methods, "decoding": {**PARAMS["decoding"], "batch_size": 1}}
    Path("params.yaml").write_text(yaml.safe_dump(content(**more)))
    reference.main()
    assert not reference.KEPT.exists()
    setup = Setup(parameters(**more))
    rows = setup.strict_rows(setup.prompts["calibration"])
    assert all(row["seconds"] > 0 for row in rows)
    calibrate.main("exact")
    calibrate.main("control")
    scope = read_json(Path("reports/calibration/control.json"))["proof"]["scope"]
    assert scope["batching"]["rows"] == 3
    card = Path("reports/records/exact/setting-1.json")
    record, *_ = read_json_lines(card.with_suffix(".records.jsonl"))
    assert record["seconds"][0] == rows[0]["seconds"] and record["forwards"][0] > 0
