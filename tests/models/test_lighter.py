"""Lighter drafts, with rounded weights or a part of the vocabulary: near the original, and drafts
stay lossless.
"""

import copy
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from gistgate.core.block import Sampling
from gistgate.core.identity import check_identity, identify_model, model_scope
from gistgate.core.utils import UserError
from gistgate.drafters.model import ModelDrafter
from gistgate.models.lighter import (
    GROUP,
    MOST_ROWS,
    Int4Linear,
    Int8Linear,
    Subset,
    SubsetHead,
    quantise,
)
from gistgate.rules import make_rule
from tests.architectures import pair, prompts, tiny_model
from tests.drafters.proposing import decoded, num_accepted, wanted
from tests.rules.enumerating import P, Q, first_token
from tests.tiny import byte_tokenizer, tiny_pair

LAYERS = {"int8": Int8Linear, "int4": Int4Linear}
EVEN = range(0, 259, 2)


def layer(bias: bool, dtype: torch.dtype = torch.float32) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(2 * GROUP, 48, bias=bias, dtype=dtype).requires_grad_(False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", LAYERS)
def test_weights_move_by_half_a_step_at_most(kind, bias, dtype):
    whole = layer(bias, dtype)
    packed = LAYERS[kind](whole)
    eye = torch.eye(2 * GROUP, dtype=dtype)
    offset = 0 if whole.bias is None else whole.bias
    weight_IO = (packed(eye) - offset).float()
    groups = whole.weight.float().view(48, -1, GROUP)
    if kind == "int8":
        step = groups.abs().amax() / 127
    else:
        step = (groups.amax(-1) - groups.amin(-1)).amax() / 15
    slack = 1e-5 if dtype == torch.float32 else 0.004
    assert (weight_IO.T - whole.weight.float()).abs().max() <= step / 2 + slack


@pytest.mark.parametrize("kind", LAYERS)
def test_activations_are_not_rounded(kind):
    """Rounded activations would break linearity: a small input beside a large one would vanish."""
    packed = LAYERS[kind](layer(bias=False))
    large = torch.zeros(1, 2 * GROUP)
    small = torch.zeros(1, 2 * GROUP)
    large[0, 0] = 1000.0
    small[0, 1] = 0.01
    difference = packed(large + small) - packed(large)
    torch.testing.assert_close(difference, packed(small), atol=2e-4, rtol=0)
    assert packed(small).abs().max() > 5e-4


@pytest.mark.parametrize("kind", LAYERS)
def test_few_and_many_rows_give_the_same(kind):
    packed = LAYERS[kind](layer(bias=True))
    x = torch.randn(2, MOST_ROWS, 2 * GROUP, generator=torch.Generator().manual_seed(0))
    row_by_row = torch.cat([packed(row[None]) for row in x.flatten(0, 1)])
    torch.testing.assert_close(packed(x).flatten(0, 1), row_by_row, atol=1e-5, rtol=1e-4)


def lighter(kind: str):
    return quantise(copy.deepcopy(pair("llama", 272)[1]), kind)


@pytest.mark.parametrize(
    ("kind", "ids"), [("int8", None), ("int4", None), ("none", EVEN), ("int4", EVEN)]
)
def test_strict_answers_are_the_greedy_ones(kind, ids):
    """With rounded weights, with a part of the vocabulary, and with both."""
    draft = lighter(kind) if ids is None else quantise(subset(ids).apply(whole()), kind)
    batch = prompts(5, 17, 2)
    assert ids is not None or not any(type(module) is nn.Linear for module in draft.modules())
    answers = decoded(ModelDrafter(draft), "llama", batch)
    assert [answer.ids for answer in answers] == wanted("llama", batch) and num_accepted(answers)


def test_layers_that_four_bits_do_not_fit_get_eight():
    kinds = [type(module) for module in quantise(whole(), "int4").modules()]
    assert Int4Linear in kinds and Int8Linear in kinds, "259 outputs are no multiple of 16"


def test_quantisation_is_part_of_the_identity():
    identities = {kind: identify_model(lighter(kind)) for kind in ("none", "int8", "int4")}
    assert len({identity.fingerprint for identity in identities.values()}) == 3
    assert [one.quantisation for one in identities.values()] == [None, "int8", "int4"]
    assert "quantisation" not in model_scope(identities["none"])
    assert model_scope(identities["int4"])["quantisation"] == "int4"
    with pytest.raises(UserError, match="its quantisation should be None, but is int8"):
        check_identity("draft", identities["none"], identify_model(lighter("int8")))
    check_identity("draft", identities["int8"], identify_model(lighter("int8")))


IDENTIFY = """
import torch
from gistgate.models.lighter import quantise
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
    with pytest.raises(UserError, match="Use one of: none, int8, int4"):
        quantise(pair("llama")[1], "int3")
    with pytest.raises(UserError, match="quantised already"):
        quantise(lighter("int8"), "int4")
    with pytest.raises(UserError, match="for processors, and it is on meta"):
        quantise(whole().to("meta"), "int8")
    draft = pair("llama")[1]
    assert quantise(draft, "none") is draft and quantise(draft, None) is draft


@pytest.mark.parametrize("kind", LAYERS)
def test_equal_weights_and_rows_of_zeros_stay_numbers_in_half_precision(kind):
    """The output row of a padding token is zero, and a scale of zero would make it no number."""
    half = layer(bias=False, dtype=torch.float16)
    half.weight[3] = 0
    half.weight[5, :GROUP] = 0.25
    packed = LAYERS[kind](half)
    assert packed.dense.isfinite().all() and not packed.dense[3].any()
    torch.testing.assert_close(
        packed.dense[5, :GROUP].float(), torch.full((GROUP,), 0.25), atol=2e-3, rtol=0
    )


TEXTS = [[10, 11, 11, 12], [12, 11, 40]]


def whole():
    return copy.deepcopy(pair("llama")[1])


def subset(ids) -> Subset:
    return Subset(tuple(ids), "hash", None, 1.0)


def test_the_most_frequent_tokens_and_those_that_are_always_in():
    tokenizer = byte_tokenizer()
    draft = tiny_pair()[1]
    special = set(tokenizer.all_special_ids)
    counted = Subset.count(TEXTS, len({*special, 200}) + 2, tokenizer, draft, [200])
    assert list(counted.ids) == sorted(special | {200, 11, 12})
    assert counted.coverage == pytest.approx(5 / 7, abs=1e-6)
    for size, texts in ((1, TEXTS), (10**6, TEXTS), (50, [])):
        with pytest.raises(UserError, match="cannot be counted"):
            Subset.count(texts, size, tokenizer, draft, [200])


def test_logits_of_the_subset_are_the_whole_model_s_and_all_others_are_impossible():
    texts = torch.tensor(prompts(5, 5))
    ids = [3, 7, 200, 258]
    before = pair("llama")[1](texts).logits
    after = subset(ids).apply(whole())(texts).logits.detach()
    torch.testing.assert_close(after[..., ids], before[..., ids])
    after[..., ids] = -torch.inf
    assert after.shape == before.shape and torch.isneginf(after).all()


@pytest.mark.parametrize("ids", [[0, 2], [1, 2], [2]])
def test_sampling_stays_lossless(ids):
    """Summed over all drafts from the subset and all numbers, the first token is distributed as
    p.
    """
    head = SubsetHead(torch.nn.Linear(3, 3, bias=False), ids)
    head.part.weight = torch.nn.Parameter(torch.eye(3)[ids])
    q = Sampling(1.0).logits(head(Q.float().log())).softmax(-1).double().detach()
    assert q[ids].sum() == pytest.approx(1) and q.sum() == pytest.approx(1)
    torch.testing.assert_close(first_token(make_rule("exact"), q_3=q), P, atol=1e-6, rtol=0)


def test_it_is_bound_to_tokenizer_draft_and_end_tokens(tmp_path):
    tokenizer = byte_tokenizer()
    draft = tiny_pair()[1]
    counted = Subset.count(TEXTS, 40, tokenizer, draft, [200])
    counted.save(tmp_path / "words.json")
    again = Subset.load(tmp_path / "words.json")
    assert again == counted
    with pytest.raises(UserError, match="another draft model"):
        again.apply(tiny_pair(noise=0.5)[1], tokenizer)
    with pytest.raises(UserError, match="another tokenizer"):
        subset([1]).apply(draft, tokenizer)
    fingerprint = identify_model(draft).fingerprint
    cut = again.apply(draft, tokenizer)
    assert again.apply(cut, tokenizer) is cut
    assert identify_model(cut).draft_vocabulary == again.digest
    assert identify_model(cut).fingerprint != fingerprint
    with pytest.raises(UserError, match=r"no nn\.Linear"):
        subset(range(9)).apply(cut)
    (tmp_path / "bad.json").write_text('{"ids": "words"}')
    with pytest.raises(UserError, match="is no draft vocabulary"):
        Subset.load(tmp_path / "bad.json")


def test_markers_that_are_not_special_are_always_in():
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["<think>", "<|fim_middle|>"], special_tokens=False)
    markers = tokenizer.convert_tokens_to_ids(["<think>", "<|fim_middle|>"])
    wide = tiny_model("llama", 264)
    counted = Subset.count(TEXTS, 10, tokenizer, wide, [2])
    assert set(markers) <= set(counted.ids) - set(tokenizer.all_special_ids)
    counted.apply(wide, tokenizer)
