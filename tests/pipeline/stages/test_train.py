"""The stage that trains heads: what is learnt, what is not, and equal bytes from equal inputs."""

from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from gistgate.core.files import read_json, write_json
from gistgate.gate import Gate
from pipeline.heads import train as training
from pipeline.pair.pair import Pair
from pipeline.stages import train
from tests.pipeline.labels.made import WIDTH, write_features
from tests.pipeline.parameters import parameters
from tests.tiny import byte_tokenizer, tiny_pair

HEADS = ("logistic", "linear", "mlp")
PARAMS = parameters(
    train={
        "features": ["h_tok:post", "scalars"],
        "pilot_features": ["scalars", "h_tok:post"],
        "heads": [*HEADS, "logistic+draft"],
        "c": [0.01, 0.1],
        "epochs": 20,
        "lr": 0.01,
        "hidden": 8,
    }
)


@pytest.fixture(scope="module")
def pair():
    return Pair(*tiny_pair(), byte_tokenizer(), "tiny")


@pytest.fixture
def stage(pair, tmp_path, monkeypatch):
    """Trains a head in an empty folder and returns where it lies; `stage.runs` holds what would be
    tracked.
    """
    monkeypatch.chdir(tmp_path)
    write_json("data/prompts/problems.json", {"train": "0a1b 2c3d"})

    @contextmanager
    def tracked(params, name, kind):
        record = MagicMock()
        yield record
        start.runs.append((name, kind, record.log_metrics.call_args.args[0]))

    def start(name, params=PARAMS):
        monkeypatch.setattr(train, "read_params", lambda: params)
        train.main(name)
        return Path("models/pilot" if name == "pilot" else f"models/heads/{name}")

    start.runs = []
    monkeypatch.setattr(training.tracking, "run", tracked)
    monkeypatch.setattr(training, "load_pair", lambda params: pair)
    return start


def both_passes(**changes):
    for name, policy in (("strict", 0), ("gated", 2)):
        write_features(Path("data/features") / name, policy=policy, **changes)


def test_heads_learn_a_direction_that_decides(stage):
    both_passes()
    for head in HEADS:
        folder = stage(head)
        metrics, curves = read_json(folder / "metrics.json"), read_json(folder / "curves.json")
        assert metrics["policy"] == "gated"
        assert metrics["policies"].keys() == {"all", "strict", "gated"}
        assert metrics["n"] == metrics["policies"]["gated"]["n"] == 12 * 25
        assert metrics["auc"] > 0.95 and metrics["ece"] < 0.08, head
        assert 0.35 < metrics["references"]["entropy"]["auc"] < 0.65
        assert metrics["references"].keys() == {"entropy", "logprob-ratio", "kl"}
        assert len(curves["reliability"]) == 15
        config = Gate.load(folder).config
        assert (
            config.features == {"h_tok:post": WIDTH, "scalars": 8}
            and config.problems == "0a1b 2c3d"
        )
    assert [(name, kind) for name, kind, _ in stage.runs] == [(head, "head") for head in HEADS]
    assert stage.runs[0][2]["auc"] > 0.9


def test_a_head_may_see_more_than_the_others(stage):
    """The draft's own confidence decides here, and only the head that sees it learns."""
    both_passes(shuffled=True, told=True)
    folders = [stage(head) for head in ("logistic", "logistic+draft")]
    without, told = (read_json(folder / "metrics.json")["auc"] for folder in folders)
    assert without < 0.6 and told > 0.95
    gates = [Gate.load(folder) for folder in folders]
    seen = ["h_tok:post", "scalars"]
    assert [list(gate.config.features) for gate in gates] == [seen, [*seen, "draft"]]
    assert [gate.wants_q for gate in gates] == [False, True]


def test_nothing_is_learnt_where_nothing_is_to_learn(stage):
    both_passes(shuffled=True)
    assert all(0.4 < read_json(stage(head) / "metrics.json")["auc"] < 0.6 for head in HEADS)


def test_the_pilot_reads_its_own_features_only(stage, tmp_path, pair):
    """A change of train.features leaves the pilot, and with it every rollout on its texts, as it
    is.
    """
    write_features(tmp_path / "data/features/pilot", policy=0)
    folder = stage("pilot")
    gate = Gate.load(folder, pair.target, pair.draft, pair.tokenizer)
    assert gate.config.head == {"type": "linear"}
    assert gate.config.provenance["data"].keys() == {"data/features/pilot"}
    assert list(gate.config.features) == ["scalars", "h_tok:post"]
    assert read_json(folder / "metrics.json")["policy"] == "all"
    before = (folder / "config.json").read_bytes()
    assert str(tmp_path).encode() not in before
    stage("pilot", replace(PARAMS, train=replace(PARAMS.train, features=("scalars",))))
    assert (folder / "config.json").read_bytes() == before


def test_equal_inputs_give_equal_bytes(stage):
    both_passes(problems=12)
    written = [
        {
            file: file.read_bytes()
            for head in HEADS
            for file in stage(head).rglob("*")
            if file.is_file()
        }
        for _ in range(2)
    ]
    assert written[0] == written[1]
