"""Gates: features, heads with their probability maps, and the folder, in which what does not fit is
refused.
"""

import copy
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sklearn.isotonic import IsotonicRegression

from gistgate.core.block import Block
from gistgate.core.features import DRAFT, LOOK_AHEAD, SCALARS, extract, layers_needed, needs_q
from gistgate.core.heads import HEADS, Isotonic, fold_standardisation
from gistgate.core.identity import (
    identify_model,
    identify_tokenizer,
    portable_name,
    weights_fingerprint,
)
from gistgate.core.utils import UserError
from gistgate.gate import Gate, GateConfig
from tests.tiny import byte_tokenizer, tiny_pair

# One row, three draft tokens, a vocabulary of four. Row 0 prefers 0, row 1 is torn between 1 and 2,
# row 2 prefers 3.
LOGITS = torch.tensor(
    [[[9.0, 1.0, 0.0, 0.0], [0.0, 2.0, 2.0, 0.0], [0.0, 0.0, 0.0, 9.0], [9.0, 0.0, 0.0, 0.0]]]
)


def example(draft=(1, 1, 3), valid=(True, True, True), logits=LOGITS, **parts):
    states = torch.arange(4.0).view(1, 4, 1).expand(1, 4, 2)  # every entry of row r is r
    hidden = {"post": states, "layer:2": -states}
    return Block(torch.tensor([draft]), torch.tensor([valid]), logits, hidden=hidden, **parts)


def columns(feature, names, block=None):
    """The columns [K] of one feature by name."""
    return dict(zip(names, extract(block or example(), [feature])[feature][0].T, strict=True))


def test_h_tok_is_the_row_after_reading_x_j_and_h_pred_the_row_that_predicts_it():
    found = extract(example(), ["h_tok:post", "h_pred:post", "h_tok:layer:2"])
    assert found["h_tok:post"][0, :, 0].tolist() == [1, 2, 3]
    assert found["h_pred:post"][0, :, 0].tolist() == [0, 1, 2]
    assert found["h_tok:layer:2"][0, :, 0].tolist() == [-1, -2, -3]


def test_scalars_read_their_own_row_and_the_next_ones_the_row_behind():
    found, log_p = columns("scalars", SCALARS), LOGITS[0].log_softmax(-1)
    assert torch.equal(found["logprob"], log_p[[0, 1, 2], [1, 1, 3]])
    assert found["gap"][0] == pytest.approx(8.0, abs=1e-5) and found["gap"][1:].tolist() == [0, 0]
    assert found["rank"].exp().round().tolist() == [2, 1, 1] and found["entropy"].argmax() == 1
    assert torch.equal(found["next_entropy"][:-1], found["entropy"][1:])
    assert torch.equal(found["next_top_logprob"][:-1], found["top_logprob"][1:])
    assert found["next_entropy"][2] < 0.1  # the row of the bonus token


def test_lookahead_says_what_follows_and_nothing_behind_the_end():
    assert LOOK_AHEAD == 2
    found = extract(example(), ["lookahead"])["lookahead"][0]
    assert found[:, [0, 3]].tolist() == found[:, [1, 4]].tolist() == [[1, 1], [1, 0], [0, 0]]
    assert found[0, 2] == pytest.approx(float(LOGITS[0, 1].log_softmax(-1)[1]))
    assert torch.equal(extract(example(), ["lookahead-6"])["lookahead-6"][0, :, :6], found)
    assert (
        extract(example(valid=(True, True, False)), ["lookahead"])["lookahead"][0, 1].tolist()
        == [0] * 6
    )


def test_what_the_draft_model_makes_of_its_token():
    """x = 1, 2, 0 against t* = argmax of LOGITS; a probability of 0 stays finite."""
    q = torch.tensor([[[0.5, 0.25, 0.25, 0.0], [0.1, 0.1, 0.7, 0.1], [0.0, 0.0, 0.0, 1.0]]])
    whole = example(q=q)
    found = columns("draft", DRAFT, whole)
    for name, ids in (("log_q", whole.draft_ids[0]), ("log_q_of_top", whole.top_ids[0, :-1])):
        torch.testing.assert_close(
            found[name], q[0].gather(-1, ids[:, None])[:, 0].log().clamp_min(-20)
        )
    assert found["q_entropy"][0].item() == pytest.approx(1.5 * math.log(2), abs=1e-5)
    assert found["q_entropy"][2].item() == pytest.approx(0, abs=1e-5)
    assert needs_q(["scalars", "draft"]) and not needs_q(["scalars", "h_tok:post"])


def test_forbidden_tokens_stay_finite_and_an_empty_draft_has_no_rows():
    forbidden = LOGITS.clone()
    forbidden[..., 1] = -torch.inf
    assert all(
        part.isfinite().all()
        for part in extract(example(logits=forbidden), ["scalars", "lookahead"]).values()
    )
    empty = Block(
        torch.zeros(2, 0, dtype=torch.long),
        torch.zeros(2, 0, dtype=torch.bool),
        torch.zeros(2, 1, 4),
    )
    sizes = {"scalars": len(SCALARS), "draft": len(DRAFT), "lookahead": 6}
    found = {name: tuple(part.shape) for name, part in extract(empty, sizes).items()}
    assert found == {name: (2, 0, size) for name, size in sizes.items()}


@pytest.mark.parametrize(
    "feature, sentence",
    [
        ("h_tock:post", "Did you mean 'h_tok'"),
        ("h_tok", "names no hidden layer"),
        ("scalars:post", "has no layers"),
        ("draft", "needs draft probabilities"),
    ],
)
def test_features_that_are_not_there_are_one_sentence(feature, sentence):
    assert layers_needed(["scalars", "h_tok:post", "h_pred:post", "h_tok:layer:2"]) == {
        "post",
        "layer:2",
    }
    with pytest.raises(UserError, match=sentence):
        extract(example(q=None), [feature])


@pytest.mark.parametrize("kind", HEADS)
def test_folding_equals_standardising(kind):
    """A head that reads raw features after folding says what it said of standardised ones."""
    torch.manual_seed(0)
    head, x = HEADS[kind](5).double().eval(), torch.randn(40, 5).double() * 3 + 7
    mean, scale = x.mean(0), x.std(0)
    expected = head((x - mean) / scale)
    fold_standardisation(head.first, mean, scale)
    assert torch.allclose(head(x), expected, atol=1e-9)
    assert not torch.allclose(head((x - mean) / scale), expected)
    assert head(x.view(2, 20, 5)).shape == (2, 20) and head(x[:0].view(2, 0, 5)).shape == (2, 0)


def test_isotonic_equals_scikit_learn_and_passes_through_its_knots():
    generator = np.random.default_rng(0)
    x = generator.normal(size=200)
    model = IsotonicRegression(out_of_bounds="clip").fit(
        x, generator.random(200) < 1 / (1 + np.exp(-x))
    )
    fitted = Isotonic(model.X_thresholds_.tolist(), model.y_thresholds_.tolist())
    grid = np.linspace(-5, 5, 1001)
    assert np.allclose(
        fitted(torch.from_numpy(grid).float()).numpy(), model.predict(grid), atol=1e-4
    )
    few, logits = (
        Isotonic([-1.0, 0.0, 2.0], [0.1, 0.5, 0.9]),
        torch.tensor([-9.0, -1.0, -0.5, 0.0, 1.0, 2.0, 9.0]),
    )
    assert few(logits).tolist() == pytest.approx([0.1, 0.1, 0.3, 0.5, 0.7, 0.9, 0.9])


@pytest.fixture(scope="module")
def pair():
    return tiny_pair()


@pytest.fixture
def gate(pair):
    torch.manual_seed(0)
    config = GateConfig(
        head={"type": "mlp", "hidden_size": 8},
        features={"h_tok:post": 32, "scalars": 8},
        target=identify_model(pair[0], "tiny/target"),
        draft=identify_model(pair[1], "tiny/draft"),
        tokenizer=identify_tokenizer(byte_tokenizer(), "tiny/target"),
        map={"type": "isotonic", "num_knots": 3},
    )
    gate = Gate(config)
    gate.map.knots.copy_(torch.tensor([-1.0, 0.0, 1.0]))
    gate.map.values.copy_(torch.tensor([0.1, 0.4, 0.9]))
    return gate


@pytest.fixture
def block():
    generator = torch.Generator().manual_seed(1)
    return Block(
        torch.randint(9, (2, 3), generator=generator),
        torch.ones(2, 3, dtype=torch.bool),
        torch.randn(2, 4, 9, generator=generator),
        hidden={"post": torch.randn(2, 4, 32, generator=generator)},
    )


def test_what_comes_back_is_what_was_saved(gate, block, pair, tmp_path):
    for folder in ("a", "b"):
        gate.save(tmp_path / folder, card="# A gate\n")
    again = Gate.load(tmp_path / "a", *pair, byte_tokenizer())
    assert (
        again.config == gate.config
        and again.layers == {"post"}
        and torch.equal(again(block), gate(block))
    )
    assert (tmp_path / "a/README.md").read_text() == "# A gate\n"
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert len({path.stat().st_mode for path in (tmp_path / "a").iterdir()}) == 1, (
        "another user may read all of it"
    )


def test_probabilities_are_float32_whatever_the_states_are_and_rows_do_not_influence_each_other(
    gate, block
):
    half = gate(replace(block, hidden={"post": block.hidden["post"].bfloat16()}))
    assert half.dtype == torch.float32 and half.shape == (2, 3) and not half.requires_grad
    hidden = {"post": block.hidden["post"][1:]}
    second = Block(block.draft_ids[1:], block.valid[1:], block.logits[1:], hidden=hidden)
    assert torch.allclose(gate(second), gate(block)[1:], atol=1e-6)


def test_another_architecture_and_another_tokenizer_are_refused(gate, pair, tmp_path):
    other = byte_tokenizer()
    other.add_tokens(["<extra>"])
    with pytest.raises(UserError, match=r"its vocabulary should be 259 tokens.*but is 260"):
        gate.check(tokenizer=other)
    for change, sentence in (
        ({"num_layers": 7}, "num layers should be 7, but is 2"),
        ({"architecture": "qwen2"}, "be qwen2"),
    ):
        gate.config = replace(gate.config, target=replace(identify_model(pair[0]), **change))
        with pytest.raises(UserError, match=sentence):
            gate.check(pair[0])


def test_another_dtype_is_the_same_model_with_a_warning(gate, pair):
    half = copy.deepcopy(pair[0]).bfloat16()
    assert weights_fingerprint(half) == weights_fingerprint(pair[0])
    with pytest.warns(UserWarning, match="runs in bfloat16"):
        gate.check(half)


@pytest.mark.parametrize(
    ("name", "portable"),
    [
        ("/home/somebody/models/target", "target"),
        ("a/b", "a/b"),
        ("models/embedded/target", "models/embedded/target"),
    ],
)
def test_names_hold_no_path_of_this_machine(name, portable):
    assert portable_name(name) == portable


@pytest.mark.parametrize(
    "change, sentence",
    [
        (lambda c: c.update(format_version=9), "format version 9, not 2"),
        (lambda c: c.update(format_version=1), "Train and calibrate again"),
        (lambda c: c.pop("target"), "'target' is missing"),
        (lambda c: c["target"].pop("hidden_size"), "hidden_size"),
        (lambda c: c["head"].update(type="lienar"), "no gate head 'lienar'. Did you mean 'linear'"),
        (lambda c: c["head"].update(hidden_size=9), "does not fit its config.json"),
        (lambda c: c.update(features=3), "is no gate configuration"),
        (lambda c: c.update(problems="other"), "its checksum differs"),
    ],
)
def test_a_damaged_configuration_is_one_sentence(gate, tmp_path, change, sentence):
    gate.save(tmp_path)
    value = json.loads((tmp_path / "config.json").read_text())
    change(value)
    (tmp_path / "config.json").write_text(json.dumps(value))
    with pytest.raises(UserError, match=sentence):
        Gate.load(tmp_path)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_half_a_file_and_a_missing_one_are_one_sentence(gate, tmp_path, file):
    gate.save(tmp_path)
    content = (tmp_path / file).read_bytes()
    (tmp_path / file).write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match=file):
        Gate.load(tmp_path)
    (tmp_path / file).unlink()
    with pytest.raises(UserError, match=rf"{file} is missing"):
        Gate.load(tmp_path)


def test_weights_that_are_not_finite_are_refused(gate, tmp_path):
    gate.save(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["head.first.weight"][0, 0] = torch.nan
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"'head.first.weight' is not finite"):
        Gate.load(tmp_path)
