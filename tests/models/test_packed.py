"""Packed weights: near the original ones, the same for few and for many rows, and those of a GGUF
file as they are there.
"""

import copy
import os
import subprocess
import sys
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from torch import nn

from gistgate.core.identity import (
    check_identity,
    identify_model,
    model_scope,
    weights_fingerprint,
)
from gistgate.core.utils import UserError
from gistgate.models import gguf_file
from gistgate.models.gguf_file import levels_of, linear_of, packed_model
from gistgate.models.loading import load_target
from gistgate.models.packed import (
    GROUP,
    SLAB,
    Int4Linear,
    Int8Linear,
    Packed,
    W8A8Linear,
    quantise,
)
from tests.architectures import pair
from tests.gguf_file import write_gguf

LAYERS = {"int8": Int8Linear, "int4": Int4Linear}


def layer(bias: bool, dtype: torch.dtype = torch.float32) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(2 * GROUP, SLAB, bias=bias, dtype=dtype).requires_grad_(False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", LAYERS)
def test_weights_move_by_half_a_step_at_most(kind, bias, dtype):
    whole = layer(bias, dtype)
    packed = LAYERS[kind].rounded(whole)
    eye = torch.eye(2 * GROUP, dtype=dtype)
    offset = 0 if whole.bias is None else whole.bias
    weight_IO = (packed(eye) - offset).float()
    groups = whole.weight.float().view(SLAB, -1, GROUP)
    if kind == "int8":
        step = groups.abs().amax() / 127
    else:
        step = (groups.amax(-1) - groups.amin(-1)).amax() / 15
    slack = 1e-5 if dtype == torch.float32 else 0.004
    assert (weight_IO.T - whole.weight.float()).abs().max() <= step / 2 + slack


@pytest.mark.parametrize("kind", LAYERS)
def test_activations_are_not_rounded(kind):
    """Rounded activations would break linearity: a small input beside a large one would vanish."""
    packed = LAYERS[kind].rounded(layer(bias=False))
    large = torch.zeros(1, 2 * GROUP)
    small = torch.zeros(1, 2 * GROUP)
    large[0, 0] = 1000.0
    small[0, 1] = 0.01
    difference = packed(large + small) - packed(large)
    torch.testing.assert_close(difference, packed(small), atol=2e-4, rtol=0)
    assert packed(small).abs().max() > 5e-4


@pytest.mark.parametrize("kind", LAYERS)
def test_few_and_many_rows_give_the_same(kind):
    packed = LAYERS[kind].rounded(layer(bias=True))
    x = torch.randn(2, packed.most_rows, 2 * GROUP, generator=torch.Generator().manual_seed(0))
    row_by_row = torch.cat([packed(row[None]) for row in x.flatten(0, 1)])
    torch.testing.assert_close(packed(x).flatten(0, 1), row_by_row, atol=1e-5, rtol=1e-4)


needs_vnni = pytest.mark.skipif(
    not torch.cpu._is_vnni_supported(), reason="this processor lacks VNNI instructions"
)


@needs_vnni
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_activations_of_8_bits_give_nearly_the_products_and_the_same_for_any_rows(dtype):
    whole = layer(bias=True, dtype=dtype)
    packed = W8A8Linear.rounded(whole)
    rows = torch.randn(9, 2 * GROUP, generator=torch.Generator().manual_seed(0)).to(dtype)
    rows[3] *= 1000.0  # which must not move the other rows
    together = packed(rows)
    size = (rows.float().norm(dim=-1, keepdim=True) * whole.weight.float().norm(dim=-1)).clamp(1.0)
    error = (together.float() - whole(rows).float()).abs() / size
    assert 0 < error.max() < 0.02
    assert together.equal(torch.cat([packed(row[None]) for row in rows]))
    assert packed(torch.zeros(1, 2 * GROUP, dtype=dtype)).equal(whole.bias[None])
    assert packed.scale.dtype == dtype


@needs_vnni
def test_compiled_programs_call_layers_with_activations_of_8_bits():
    packed = W8A8Linear.rounded(layer(bias=False))
    rows = torch.randn(3, 2 * GROUP, generator=torch.Generator().manual_seed(0))
    compiled = torch.compile(packed, fullgraph=True)
    torch.testing.assert_close(compiled(rows), packed(rows))


def test_activations_of_8_bits_need_a_processor_that_has_them(monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    with pytest.raises(UserError, match="need a processor with VNNI instructions"):
        lighter("w8a8")


def lighter(kind: str):
    return quantise(copy.deepcopy(pair("llama", 272)[1]), kind)


def test_layers_that_four_bits_do_not_fit_get_eight():
    kinds = [type(module) for module in lighter("int4").modules()]
    assert Int4Linear in kinds and Int8Linear in kinds, "272 outputs are no multiple of 64"


def test_quantisation_is_part_of_the_identity():
    identities = {kind: identify_model(lighter(kind)) for kind in ("none", "int8", "int4")}
    assert len({identity.fingerprint for identity in identities.values()}) == 3
    assert [one.quantisation for one in identities.values()] == [None, "int8", "int4"]
    assert "quantisation" not in model_scope(identities["none"])
    assert model_scope(identities["int4"])["quantisation"] == "int4"
    with pytest.raises(UserError, match="its quantisation should be None, but is int8"):
        check_identity("draft", identities["none"], identify_model(lighter("int8")))
    check_identity("draft", identities["int8"], identify_model(lighter("int8")))


@pytest.mark.parametrize("kind", LAYERS)
def test_a_processor_without_bfloat16_reads_packed_weights_for_any_number_of_rows(
    kind, monkeypatch
):
    """It would unpack them to a type in which it computes slowly."""
    packed = LAYERS[kind].rounded(layer(bias=False))
    rows = torch.ones(packed.most_rows + 1, 2 * GROUP)
    monkeypatch.setattr(packed, "narrow", lambda rows: torch.zeros(len(rows), SLAB))
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    assert packed(rows).any()
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    assert not packed(rows).any()


IDENTIFY = """
import torch
from gistgate.models.packed import quantise
from gistgate.core.identity import identify_model
from tests.architectures import noisy_copy, tiny_model
print(torch.backends.cpu.get_cpu_capability())
for kind in ("none", "int8", "int4"):
    model = tiny_model("llama", 272)
    for either in (noisy_copy(model, 0.5), model):
        print(identify_model(quantise(either, kind)).fingerprint)
"""


def test_the_fingerprint_is_that_of_the_weights_and_not_of_the_processor():
    outputs = []
    for settings in ({"ATEN_CPU_CAPABILITY": "default"}, {}):
        ran = subprocess.run(
            [sys.executable, "-c", IDENTIFY],
            env=os.environ | settings,
            capture_output=True,
            check=True,
        )
        outputs.append(ran.stdout.split())
    (basic, *fingerprints), (usual, *again) = outputs
    if basic == usual:
        pytest.skip("this processor offers one instruction set")
    assert fingerprints == again
    assert len(set(fingerprints)) == 6, "other weights and other kinds have other fingerprints"


def test_what_cannot_be_quantised_is_refused():
    with pytest.raises(UserError, match="Use one of: none, int8, int4, w8a8"):
        quantise(pair("llama")[1], "int3")
    with pytest.raises(UserError, match="quantised already"):
        quantise(lighter("int8"), "int4")
    with pytest.raises(UserError, match="the model is on meta"):
        quantise(copy.deepcopy(pair("llama")[1]).to("meta"), "int8")
    draft = pair("llama")[1]
    assert quantise(draft, "none") is draft and quantise(draft, None) is draft


@pytest.mark.parametrize("kind", LAYERS)
def test_equal_weights_and_rows_of_zeros_stay_numbers_in_half_precision(kind):
    """The output row of a padding token is zero, and a scale of zero would make it no number."""
    half = layer(bias=False, dtype=torch.float16)
    half.weight[3] = 0
    half.weight[5, :GROUP] = 0.25
    packed = LAYERS[kind].rounded(half)
    weight_OI = packed.wide(torch.eye(2 * GROUP, dtype=torch.float16)).T
    assert weight_OI.isfinite().all() and not weight_OI[3].any()
    expected = torch.full((GROUP,), 0.25, dtype=torch.float16)
    torch.testing.assert_close(weight_OI[5, :GROUP], expected, atol=2e-3, rtol=0)


ORDERS = """
import torch
from gistgate.models.packed import Int4Linear
torch.manual_seed(0)
layer = Int4Linear.rounded(torch.nn.Linear(96, 192, bias=False))
x = torch.randn(5, 96)
torch.testing.assert_close(layer.narrow(x), layer.wide(x))
"""


@pytest.mark.parametrize("instructions", ["default", "avx2", "avx512"])
def test_levels_are_unpacked_in_the_order_of_every_processor(instructions):
    settings = os.environ | {"ATEN_CPU_CAPABILITY": instructions}
    subprocess.run([sys.executable, "-c", ORDERS], env=settings, check=True)


# ---- Blocks of GGUF files.


@pytest.mark.parametrize(
    ("kind", "size", "inputs"),
    [("Q4_0", 18, 32), ("Q4_1", 20, 32), ("Q4_K", 144, 256)],
)
def test_blocks_of_four_bits_are_read_as_ggml_defines_them(kind, size, inputs):
    blocks = np.random.default_rng(0).integers(0, 256, (6, 3 * size), dtype=np.uint8)
    halves = blocks.reshape(6, 3, size)[..., : 4 if kind != "Q4_0" else 2]
    halves[:] = np.full(halves.shape[-1] // 2, 0.3, np.float16).view(np.uint8)
    levels_OI, scale_OG, offset_OG = levels_of(torch.from_numpy(blocks), kind)
    levels_OGg = levels_OI.view(6, -1, GROUP)
    weights = (levels_OGg * scale_OG[..., None] + offset_OG[..., None]).flatten(1)
    expected = gguf.dequantize(blocks, gguf.GGMLQuantizationType[kind])
    assert weights.shape == (6, 3 * inputs)
    torch.testing.assert_close(weights, torch.from_numpy(expected))


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1"])
@pytest.mark.parametrize(
    ("architecture", "leave_out"), [("qwen2", None), ("llama", None), ("qwen2", "output")]
)
def test_a_packed_file_computes_what_its_unpacked_weights_do(
    tmp_path, architecture, leave_out, kind
):
    """llama.cpp permutes the queries and keys of llama, and an output layer may be that of the
    embeddings.
    """
    file = write_gguf(
        tmp_path / "model.gguf", kind=kind, architecture=architecture, leave_out=leave_out
    )
    packed = load_target(str(file), device="cpu").model
    whole = load_target(str(file), "bfloat16", "cpu", quantise="none").model
    assert packed.quantised == "gguf" and identify_model(packed).quantisation == "gguf"
    kinds = {type(module) for module in packed.modules()}
    assert (Int8Linear if kind == "Q8_0" else Int4Linear) in kinds
    assert nn.Linear not in kinds and nn.Embedding not in kinds
    ids = torch.arange(40)[None]
    with torch.no_grad():
        difference = (packed(ids).logits - whole(ids).logits).float()
        spread = whole(ids).logits.float().std()
    assert difference.std() < 0.03 * spread


def test_biases_stand_in_their_layers_before_the_layers_are_packed(tmp_path, monkeypatch):
    """Two threads fill a model: a layer that is packed first would take a bias over that was never
    read.
    """
    biases = []

    def packed(data: Any, kind: str, layer: nn.Linear, dtype: torch.dtype) -> Packed:
        biases.append(layer.bias)
        return linear_of(data, kind, layer, dtype)

    monkeypatch.setattr(gguf_file, "linear_of", packed)
    packed_model(write_gguf(tmp_path / "model.gguf"))
    assert sum(bias is not None for bias in biases) == 3
    assert all(bias is None or bool((bias == 1).all()) for bias in biases)


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_a_file_that_is_rounded_while_it_is_read_gives_the_weights_of_the_unpacked_one(
    tmp_path, kind
):
    file = write_gguf(tmp_path / "model.gguf")
    whole = load_target(str(file), "bfloat16", "cpu", quantise="none").model
    while_read = load_target(str(file), "bfloat16", "cpu", quantise=kind).model
    assert while_read.quantised == kind
    assert weights_fingerprint(while_read) == weights_fingerprint(quantise(whole, kind))


def test_a_file_without_some_weights_and_another_dtype_are_refused(tmp_path):
    file = write_gguf(tmp_path / "model.gguf", leave_out="blk.0.ffn_up")
    with pytest.raises(ValueError, match=r"lack 1 weights, such as model.layers.0.mlp.up_proj"):
        packed_model(file)
    with pytest.raises(UserError, match="in bfloat16"):
        load_target(str(file), "float32", "cpu", quantise="gguf")


def test_blocks_whose_scales_are_no_numbers_are_refused(tmp_path):
    file = write_gguf(tmp_path / "model.gguf", kind="Q4_0")
    for tensor in gguf.GGUFReader(file, "r+").tensors:
        if tensor.name == "blk.0.ffn_up.weight":
            tensor.data[0, :2] = np.array([np.nan], np.float16).view(np.uint8)
    with pytest.raises(UserError, match="is not finite"):
        load_target(str(file), device="cpu")


def test_pieces_of_a_safetensors_model_are_no_blocks_of_a_gguf_file():
    with pytest.raises(UserError, match="Name such a file"):
        quantise(pair("llama")[1], "gguf")
