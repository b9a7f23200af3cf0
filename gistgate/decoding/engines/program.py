"""A function of tensors as a program of fixed shape: traced once, compiled where possible, captured on a GPU.

Tracing runs the function on tensors without values. What it finds is a flat list of operations: hooks, modules,
dataclasses and the library around them have vanished, and code that looks at a value is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from gistgate.decoding.engines.chain import chained, constant
from gistgate.decoding.engines.repeats import LIKE

Program = Callable[..., tuple[Tensor, ...]]
"""Tensors of the shapes that it was built for -> tensors."""


HEAVY = 1 << 28
"""Bytes of weights whose reading takes a processor so long that the calls of kernels cost nothing beside it."""


class UnsupportedError(Exception):
    """This function cannot become a program; the message is the part of a sentence that says why."""


def build(function: Callable[..., tuple[Tensor, ...]], example: Sequence[Tensor], compiles: bool) -> Program:
    """Trace `function` for tensors like `example`, and compile it.

    Raises:
        UnsupportedError: its operations depend on values, or the compiler refuses.
    """
    with torch.inference_mode(False), torch.no_grad():
        graph = trace(function, example)
        if not compiles:
            return graph
        if num_bytes([*graph.parameters(), *graph.buffers()]) < HEAVY:
            return compiled(graph, example, small=True)
        return chained(graph, example, compiled) or compiled(graph, example)


def trace(function: Callable[..., tuple[Tensor, ...]], example: Sequence[Tensor]) -> fx.GraphModule:
    """The operations of `function` as a graph module."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        # Without values nothing is written into the memory that the example brings along, and no branch can be taken
        # that another round would not take.
        fakes = [mode.from_tensor(tensor) for tensor in example]
        with mode:
            graph: fx.GraphModule = make_fx(function, _allow_non_fake_inputs=True)(*fakes)
    except UnsupportedError:
        raise
    except Exception as error:  # whatever a model or a rule does that a graph cannot hold
        raise UnsupportedError(f"it cannot be traced ({first_line(error)})") from error
    for node in graph.graph.nodes:  # leave no other tensor of the tracing behind: the compiler begins its own
        value = constant(graph, node) if node.op == "get_attr" else node.meta.get("val")
        node.meta = {LIKE: like_of(value)}
    return graph


def like_of(value: Any) -> tuple[Any, ...] | None:
    """Size, strides, dtype and device of a tensor; None of anything else."""
    if not isinstance(value, Tensor):
        return None
    return tuple(value.shape), value.stride(), value.dtype, value.device


def compiled(graph: fx.GraphModule, example: Sequence[Tensor], small: bool = False) -> Program:
    """The graph as machine code; small ones are called from C++ on a processor.

    That spares the interpreter between small kernels. Where kernels read many weights it saves nothing, and compiling
    the calls would take most of the time.
    """
    import torch._inductor as inductor

    on_cpu = all(tensor.device.type == "cpu" for tensor in example)
    options: dict[str, Any] = {"cpp_wrapper": True} if on_cpu and small else {}
    try:
        program: Program = inductor.compile(graph, list(example), options=options)
    except Exception as error:
        raise UnsupportedError(f"it cannot be compiled ({first_line(error)})") from error
    return program


def num_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of all of them."""
    return sum(tensor.nbytes for tensor in tensors)


def missing_compiler(device: torch.device) -> str | None:
    """What keeps this machine from compiling for `device`; None when nothing does."""
    if device.type == "cuda":
        from torch.utils._triton import has_triton

        return None if has_triton() else "Triton is not installed"
    try:
        from torch._inductor.cpp_builder import get_cpp_compiler

        get_cpp_compiler()
    except Exception:
        return "there is no C++ compiler"
    return None


def first_line(error: BaseException) -> str:
    """The beginning of an error's message, fit for half a sentence."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:160]}".rstrip(": .")


@contextmanager
def own_workspaces() -> Iterator[None]:
    """Matrix products inside take their scratch memory anew, so that a graph keeps what it recorded.

    PyTorch shares this memory among all that runs on a stream, and its own graphs give it back: a graph that had
    recorded the shared one would write into memory of somebody else. For the same reason no other thread may work on a
    GPU meanwhile.
    """
    torch._C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()


class Captured:
    """A program whose kernels a CUDA graph replays: one launch instead of hundreds.

    Memory that the program writes (`fixed`) is used where it lies; everything else is copied into the graph's own
    buffers before a replay. What it returns is overwritten by the next replay.
    """

    warm_ups = 3
    """Runs before the capture, so that libraries have allocated and tuned what they need."""

    def __init__(self, program: Program, fixed: Sequence[Tensor], example: Sequence[Tensor]) -> None:
        """Run the program a few times, then record it; what lies in `fixed` afterwards is of no interest.

        Raises:
            UnsupportedError: it does something that cannot be recorded.
        """
        self.program = program  # the graph reads its constants where they lie, so that they have to live on
        self.fixed = list(fixed)
        self.inputs = [tensor.clone() for tensor in example]
        self.device = self.inputs[0].device  # the current one may be another
        try:
            with torch.cuda.device(self.device):
                self._record()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise UnsupportedError(f"it cannot be captured ({first_line(error)})") from error

    def _record(self) -> None:
        self.graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(self.warm_ups):
                self.program(*self.fixed, *self.inputs)
        torch.cuda.current_stream().wait_stream(stream)
        with own_workspaces(), torch.cuda.graph(self.graph, stream=stream):
            self.outputs = self.program(*self.fixed, *self.inputs)

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Replay for `fixed` (already known, skipped) and fresh inputs."""
        for held, fresh in zip(self.inputs, tensors[len(self.fixed) :], strict=True):
            held.copy_(fresh, non_blocking=True)
        with torch.cuda.device(self.device):
            self.graph.replay()
        return self.outputs
