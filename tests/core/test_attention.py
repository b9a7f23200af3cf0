"""Attention of few new tokens is that of the fused kernel, and memory that was freed stays with the
process.
"""

import ctypes
import json
import os
import platform
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import LlamaConfig, LlamaForCausalLM

from gistgate.core import attention
from gistgate.core.attention import (
    MOST,
    OWN_CHOICE,
    attend,
    attend_to_few,
    fused_on_cpu,
    keep_freed_memory,
    unplanned,
)
from gistgate.core.reader import Reader
from tests.architectures import tiny_model
from tests.tiny import tiny_pair


def drawn(
    num: int, heads: int = 6, kv_heads: int = 2, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(num)
    shapes = ((3, heads, num, 8), (3, kv_heads, 20, 8), (3, kv_heads, 20, 8))
    return tuple(torch.randn(shape, generator=generator).to(dtype) for shape in shapes)


def mask_of(num: int) -> torch.Tensor:
    """Each row sees another part of the slots; the first token of the first row sees nothing, as
    padding does.
    """
    seen = torch.rand(3, 1, num, 20, generator=torch.Generator().manual_seed(1)) < 0.6
    seen[..., 0] = True
    seen[0, 0, 0] = False
    return seen


@pytest.mark.parametrize(
    ("dtype", "error"), [(torch.float32, 1e-5), (torch.bfloat16, 0.02), (torch.float64, 1e-12)]
)
@pytest.mark.parametrize("kv_heads", [1, 2, 6])
@pytest.mark.parametrize("kind", ["truth", "numbers", "none"])
@pytest.mark.parametrize("num", [1, 5])
def test_it_is_the_attention_of_the_fused_kernel(num, kind, kv_heads, dtype, error):
    """Computed in double precision, with the error of each precision's own rounding."""
    query, key, value = drawn(num, kv_heads=kv_heads, dtype=dtype)
    seen = mask_of(num)
    numbers = torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, -1e30)
    attended, _ = attend(
        query, key, value, {"truth": seen, "none": None, "numbers": numbers}[kind], 0.3
    )
    parts = (part.double() for part in (query, key, value))
    mask = None if kind == "none" else seen
    theirs = scaled_dot_product_attention(*parts, attn_mask=mask, scale=0.3, enable_gqa=True)
    sighted = slice(1, None) if kind != "none" else slice(None)
    assert attended.dtype == dtype and attended.isfinite().all(), "padding becomes no nan"
    torch.testing.assert_close(
        attended[sighted].double(), theirs.transpose(1, 2)[sighted], rtol=error, atol=error
    )


@pytest.mark.parametrize(
    ("num", "special"), [(MOST + 1, {}), (5, {"softcap": 1.0}), (5, {"no mask": True})]
)
def test_the_rest_goes_to_the_fused_kernel(monkeypatch, num, special):
    calls = []
    monkeypatch.setattr(
        attention,
        "sdpa_attention_forward",
        lambda *parts, **options: calls.append(options) or (None, None),
    )
    query, key, value = drawn(num)
    mask = None if special.pop("no mask", False) else mask_of(num)
    attend_to_few(torch.nn.Identity(), query, key, value, mask, scaling=0.3, dropout=0.0, **special)
    assert calls == [{"scaling": 0.3, "dropout": 0.0, **special}]


def test_only_forwards_of_a_reader_use_it_and_the_choice_of_a_model_stays(monkeypatch):
    chosen = []
    monkeypatch.setitem(
        attention.ALL_ATTENTION_FUNCTIONS._global_mapping,
        attention.FEW,
        lambda *parts, **options: (
            chosen.append(parts[1].shape[2]) or attend_to_few(*parts, **options)
        ),
    )
    model = tiny_model("llama")
    reader = Reader(model, 2)
    reader.read(
        torch.tensor([[5, 6, 7], [8, 9, 10]]), torch.tensor([[True] * 3, [False, True, True]]), 1
    )
    assert (
        chosen == [3] * model.config.num_hidden_layers
        and model.config._attn_implementation == "sdpa"
    )
    model(torch.tensor([[1, 2]]))
    assert len(chosen) == model.config.num_hidden_layers


def test_a_model_that_chose_otherwise_keeps_its_choice():
    config = LlamaConfig(
        vocab_size=20,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    config._attn_implementation = "eager"
    assert fused_on_cpu(LlamaForCausalLM(config)) == []
    model = tiny_model("llama")
    with pytest.raises(IndexError):
        Reader(model, 1).read(torch.tensor([[10**6]]), None, 1)
    assert model.config._attn_implementation == "sdpa", "the choice comes back after an error"


def test_kernels_that_plan_for_every_length_are_left_out_on_a_gpu_alone():
    """The switches are the process's own, so that they have to come back."""
    usual = [torch.backends.cuda.cudnn_sdp_enabled(), torch.backends.cuda.flash_sdp_enabled()]
    assert usual[0]
    with unplanned(SimpleNamespace(device=torch.device("cuda"))):
        assert (
            not torch.backends.cuda.cudnn_sdp_enabled() and torch.backends.cuda.flash_sdp_enabled()
        )
    assert [
        torch.backends.cuda.cudnn_sdp_enabled(),
        torch.backends.cuda.flash_sdp_enabled(),
    ] == usual
    with unplanned(tiny_model("llama")):
        assert torch.backends.cuda.cudnn_sdp_enabled()


GLIBC = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="only glibc returns large pieces at once"
)
FAULTS = """
import json, resource, torch
{before}
x = torch.zeros(1 << 24)
def faults():
    first = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        x + 1
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - first
faults(), faults()
print(json.dumps(faults()))
"""
PAGES = 5 * (1 << 26) // 4096
"""Pages of five results of 64 MiB."""


def faults(before: str, **environment: str) -> int:
    """Page faults of five large results, in a process of its own."""
    own = {name: value for name, value in os.environ.items() if name not in OWN_CHOICE}
    own |= {"MALLOC_ARENA_MAX": "1", **environment}
    ran = subprocess.run(
        [sys.executable, "-c", FAULTS.format(before=before)],
        env=own,
        capture_output=True,
        check=True,
    )
    return int(json.loads(ran.stdout))


@GLIBC
def test_large_results_cost_no_page_faults_any_more():
    freed = faults(
        "from gistgate.core.attention import keep_freed_memory; assert keep_freed_memory()"
    )
    assert freed < PAGES // 20
    assert faults("") > PAGES // 2, "without it every page of every result is filled anew"


@pytest.mark.parametrize(("device", "libc"), [("cuda", "glibc"), ("cpu", "")])
def test_nothing_is_changed_elsewhere(device: str, libc: str, monkeypatch: pytest.MonkeyPatch):
    for name in OWN_CHOICE:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(platform, "libc_ver", lambda: (libc, ""))
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: pytest.fail("the C library was asked"))
    assert not keep_freed_memory(device)


def test_loading_for_a_processor_asks_for_it(tmp_path, monkeypatch: pytest.MonkeyPatch):
    from pipeline.pair.pair import ModelSource, load_model

    tiny_pair()[0].save_pretrained(tmp_path)
    devices: list[str] = []
    monkeypatch.setattr(
        "gistgate.models.loading.keep_freed_memory", lambda device: devices.append(str(device))
    )
    load_model(ModelSource(str(tmp_path), dtype="float32", device="cpu"))
    assert devices == ["cpu"]
