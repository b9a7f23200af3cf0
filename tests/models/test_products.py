"""Products in C++ with packed weights: those of the levels, for any number of rows and outputs, and
none where they cannot be.
"""

import pytest
import torch
from torch import Tensor, nn
from torch._inductor.codecache import CppCodeCache

from gistgate.compiled.program import build
from gistgate.models import products
from gistgate.models.packed import GROUP, Int4Linear, Int8Linear, Packed
from gistgate.models.products import SPAN

INPUTS = 2 * SPAN
KINDS = ("int8", "int4")

needed = pytest.mark.skipif(
    not products.are_compiled(), reason="no such instructions, or no C++ compiler"
)


def layer(kind: str, outputs: int = 128) -> tuple[Packed, Tensor]:
    """A layer of random levels, and its weights [O, I] in float64."""
    torch.manual_seed(0)
    if kind == "int8":
        levels_OI = torch.randint(-127, 128, (outputs, INPUTS), dtype=torch.int8)
        scale_O = (torch.rand(outputs) / 100).bfloat16()
        return Int8Linear(levels_OI, scale_O, None), levels_OI * scale_O.double()[:, None]
    levels_OI = torch.randint(0, 16, (outputs, INPUTS), dtype=torch.int32)
    scale_OG, middle_OG = torch.randn(2, outputs, INPUTS // GROUP).bfloat16()
    weight_OGg = (levels_OI - 8).view(outputs, -1, GROUP) * scale_OG.double()[..., None]
    weight_OI = (weight_OGg + middle_OG[..., None]).flatten(1)
    return Int4Linear(levels_OI, scale_OG, middle_OG, None), weight_OI


@needed
@pytest.mark.parametrize("rows", [1, 2, 3, 8])
@pytest.mark.parametrize(("kind", "outputs"), [("int8", 128), ("int8", 37), ("int4", 192)])
def test_products_are_those_of_the_levels(kind, outputs, rows):
    packed, weight_OI = layer(kind, outputs)
    x = torch.randn(rows, INPUTS).bfloat16()
    assert products.take(x)
    exact = x.double() @ weight_OI.T
    rounding = 2**-8 * exact.abs() + 1e-5 * exact.abs().max()
    assert ((packed.narrow(x) - exact).abs() <= rounding).all()


@needed
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_gives_the_same_among_others(kind):
    packed, _ = layer(kind)
    x = torch.randn(5, INPUTS).bfloat16()
    alone = torch.cat([packed.narrow(row[None]) for row in x])
    assert torch.equal(packed.narrow(x), alone)


@needed
@pytest.mark.parametrize("kind", KINDS)
def test_a_small_input_beside_a_large_one_is_not_rounded(kind):
    packed, weight_OI = layer(kind)
    x = torch.zeros(2, INPUTS).bfloat16()
    x[0, 0] = -1000.0
    x[:, 1] = 1 / 7
    large, small = packed.narrow(x).double()
    torch.testing.assert_close(small, weight_OI[:, 1] * x[1, 1].double(), rtol=2**-8, atol=0)
    zero_O = weight_OI[:, 0].abs().argsort()[:1]  # an output that hardly reads the large input
    exact = x[0].double() @ weight_OI[zero_O].T
    torch.testing.assert_close(large[zero_O], exact, rtol=2**-8, atol=1e-4)


@needed
@pytest.mark.parametrize("kind", KINDS)
def test_spans_of_zeros_stay_zero_and_what_is_no_number_stays_none(kind):
    packed, _ = layer(kind)
    x = torch.zeros(4, INPUTS).bfloat16()
    x[1, 3] = 1e-38
    x[2, 3] = float("inf")
    x[3, SPAN] = float("nan")
    y = packed.narrow(x)
    assert not y[0].any() and (y[1].abs() < 1e-30).all()
    assert y[2:].isnan().all()


def test_other_types_and_widths_are_left_to_pytorch():
    assert not products.take(torch.zeros(1, INPUTS))
    assert not products.take(torch.zeros(1, INPUTS + GROUP).bfloat16())


def test_without_instructions_or_compiler_there_are_none(monkeypatch):
    def refuse(*_args: object, **_options: object) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(products, "has_instructions", lambda: True)
    monkeypatch.setattr(CppCodeCache, "load", refuse)
    assert not products.are_compiled.__wrapped__()
    monkeypatch.undo()
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    assert not products.are_compiled.__wrapped__()


@needed
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_programs_call_them(kind):
    packed = nn.Sequential(layer(kind)[0])
    x = torch.randn(3, INPUTS).bfloat16()
    program = build(lambda x: (packed(x).tanh(),), [x], [], compiles=True, shared={})
    assert torch.equal(program(x)[0], packed(x).tanh())
