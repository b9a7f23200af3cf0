"""The gate folder: what comes back is what was saved, and what does not fit is refused with a sentence."""

import copy
import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from gistgate.core.block import Block
from gistgate.core.gate import Gate, GateConfig
from gistgate.core.identity import identify_model, identify_tokenizer, portable_name, weights_fingerprint
from gistgate.core.utils import UserError
from tests.tiny import byte_tokenizer, tiny_pair


@pytest.fixture(scope="module")
def pair():
    return tiny_pair()


@pytest.fixture(scope="module")
def tokenizer():
    return byte_tokenizer()


@pytest.fixture
def gate(pair, tokenizer):
    torch.manual_seed(0)
    config = GateConfig(
        head={"type": "mlp", "hidden_size": 8},
        features={"h_tok:post": 32, "scalars": 8},
        target=identify_model(pair[0], "tiny/target"),
        draft=identify_model(pair[1], "tiny/draft"),
        tokenizer=identify_tokenizer(tokenizer, "tiny/target"),
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


def test_another_user_may_read_what_is_saved(gate, tmp_path):
    gate.save(tmp_path, card="# A gate\n")
    modes = {path.name: path.stat().st_mode for path in tmp_path.iterdir()}
    assert len(modes) >= 3 and len(set(modes.values())) == 1, modes


def test_round_trip(gate, block, pair, tokenizer, tmp_path):
    gate.save(tmp_path, card="# A gate\n")
    again = Gate.load(tmp_path, *pair, tokenizer)
    assert again.config == gate.config
    assert torch.equal(again(block), gate(block))
    assert again.layers == {"post"}
    assert (tmp_path / "README.md").read_text() == "# A gate\n"


def test_equal_gates_have_equal_bytes(gate, tmp_path):
    gate.save(tmp_path / "a")
    gate.save(tmp_path / "b")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_probabilities_are_float32_whatever_the_states_are(gate, block):
    half = replace(block, hidden={"post": block.hidden["post"].bfloat16()})
    assert gate(half).dtype == torch.float32
    assert gate(half).shape == (2, 3)
    assert not gate(half).requires_grad


def test_rows_do_not_influence_each_other(gate, block):
    second = replace(
        block,
        draft_ids=block.draft_ids[1:],
        valid=block.valid[1:],
        logits=block.logits[1:],
        hidden={"post": block.hidden["post"][1:]},
    )
    assert torch.allclose(gate(second), gate(block)[1:], atol=1e-6)


def test_states_of_another_width_are_refused(gate, block):
    with pytest.raises(UserError, match=r"reads 40 features, but the block gives 24 .*tiny/target"):
        gate(replace(block, hidden={"post": block.hidden["post"][..., :16]}))


# Wrong partners.


def other_weights(model):
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.model.layers[1].mlp.down_proj.weight.add_(0.01)
    return other


@pytest.mark.parametrize("role", ["target", "draft"])
def test_another_model_of_the_same_shape_is_refused(gate, pair, tmp_path, role):
    gate.save(tmp_path)
    partner = {"target": pair[0], "draft": pair[1]}
    partner[role] = other_weights(partner[role])
    with pytest.raises(UserError, match=rf"does not fit the {role}: its weights .* Load 'tiny/{role}'"):
        Gate.load(tmp_path, **partner)


@pytest.mark.parametrize(
    "change, sentence",
    [
        ({"num_layers": 7}, "num layers should be 7, but is 2"),
        ({"architecture": "qwen2"}, "should be qwen2, but is llama"),
    ],
)
def test_another_architecture_is_refused(gate, pair, tmp_path, change, sentence):
    gate.config = replace(gate.config, target=replace(gate.config.target, **change))
    gate.save(tmp_path)
    with pytest.raises(UserError, match=sentence):
        Gate.load(tmp_path, pair[0])


def test_another_tokenizer_is_refused(gate, tokenizer, tmp_path):
    gate.save(tmp_path)
    other = byte_tokenizer()
    other.add_tokens(["<extra>"])
    with pytest.raises(UserError, match=r"its vocabulary should be 259 tokens.*but is 260"):
        Gate.load(tmp_path, tokenizer=other)


def test_another_dtype_is_the_same_model_with_a_warning(gate, pair, tmp_path):
    gate.save(tmp_path)
    half = copy.deepcopy(pair[0]).bfloat16()
    assert weights_fingerprint(half) == weights_fingerprint(pair[0])
    with pytest.warns(UserWarning, match="runs in bfloat16"):
        Gate.load(tmp_path, half)


def test_names_hold_no_path_of_this_machine():
    assert portable_name("/home/somebody/models/target") == "target"
    assert portable_name("Qwen/Qwen2.5-7B") == "Qwen/Qwen2.5-7B"
    assert portable_name("models/embedded/target") == "models/embedded/target"


# Damaged folders.


def rewrite(path, change):
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


@pytest.mark.parametrize(
    "change, sentence",
    [
        (lambda c: c.update(format_version=9), "format version 9, this gistgate reads 2"),
        (lambda c: c.update(format_version=1), "train and calibrate the gate again"),
        (lambda c: c.update(hed={}), "unknown key 'hed' .Did you mean 'head'"),
        (lambda c: c.pop("target"), "'target' is missing"),
        (lambda c: c["target"].pop("hidden_size"), "hidden_size"),
        (lambda c: c["head"].update(type="lienar"), "no gate head 'lienar'. Did you mean 'linear'"),
        (lambda c: c["map"].update(type="beta"), "no probability map 'beta'"),
        (lambda c: c["head"].update(hidden_size=9), "does not fit its config.json"),
        (lambda c: c["features"][0].update(id="h_tok"), "names no hidden layer"),
        (lambda c: c.update(features=3), "is no gate configuration"),
        (lambda c: c.update(head="linear"), "is no gate configuration"),
    ],
)
def test_a_damaged_configuration_is_one_sentence(gate, tmp_path, change, sentence):
    gate.save(tmp_path)
    rewrite(tmp_path / "config.json", change)
    with pytest.raises(UserError, match=sentence):
        Gate.load(tmp_path)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_a_missing_file_is_one_sentence(gate, tmp_path, file):
    gate.save(tmp_path)
    (tmp_path / file).unlink()
    with pytest.raises(UserError, match=rf"{file} is missing"):
        Gate.load(tmp_path)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_half_a_file_is_one_sentence(gate, tmp_path, file):
    gate.save(tmp_path)
    content = (tmp_path / file).read_bytes()
    (tmp_path / file).write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match=file):
        Gate.load(tmp_path)


def test_weights_that_are_not_finite_are_refused(gate, tmp_path):
    gate.save(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["head.first.weight"][0, 0] = torch.nan
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"'head.first.weight' is not finite"):
        Gate.load(tmp_path)
