"""Products of few rows with packed weights in C++ (`products.cpp`), compiled when they are first
needed, for processors with certain instructions. Elsewhere PyTorch's own are taken.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SOURCE = Path(__file__).with_suffix(".cpp")
INSTRUCTIONS = ("avx512_f", "avx512_bw", "avx512_vl", "avx512_vnni", "avx512_vbmi")
SPAN = 64
"""Inputs that are read together: layers with a number of inputs that it does not divide are left
to PyTorch."""


@cache
def define() -> torch.library.Library:
    """The operators, without what they do. A copy of this module in an exported gate comes without
    the C++ code and never defines them.
    """
    library = torch.library.Library("gistgate", "FRAGMENT")
    library.define("int4_product(Tensor rows, Tensor packed, Tensor scale_and_middle) -> Tensor")
    library.define("int8_product(Tensor rows, Tensor levels, Tensor scale) -> Tensor")
    for name in ("int4_product", "int8_product"):
        torch.library.register_fake(f"gistgate::{name}", products_like, lib=library)
    return library


def products_like(rows: Tensor, weights: Tensor, _numbers: Tensor) -> Tensor:
    """Products [R, O] without values of rows [R, I] with weights, whose first axis is O."""
    return rows.new_empty(len(rows), len(weights))


def take(rows: Tensor) -> bool:
    """Whether these products are for rows [R, I] of this type and width, and for this machine."""
    return rows.dtype == torch.bfloat16 and rows.shape[-1] % SPAN == 0 and are_compiled()


@cache
def are_compiled() -> bool:
    """Compile the products, unless a process of this machine has done so before; False where the
    processor lacks instructions, or the machine a C++ compiler.
    """
    if not has_instructions():
        return False
    from torch._inductor.codecache import CppCodeCache

    flags = [f"-m{name.replace('_', '')}" for name in INSTRUCTIONS]
    try:
        code = SOURCE.read_text()
        define()
        CppCodeCache.load(code, extra_flags=flags)
    except Exception:  # of the many ways in which a compiler is missing, or is too old
        return False
    return True


def has_instructions() -> bool:
    """Whether PyTorch packs weights of 4 bits in the order for AVX-512, and the processor has the
    instructions that the products are made of.
    """
    present: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    packs = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return packs and all(present.get(name, False) for name in INSTRUCTIONS)
