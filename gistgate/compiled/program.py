"""A function of tensors as a program of fixed shape: traced once, compiled where possible, captured
on a GPU.

The layers of a large model are compiled once and called with the weights of each. `torch.compile`
of each layer would enter its runtime once per layer and step: with a target of 20M parameters a
strict round takes 1.9 times as long.
"""

from collections.abc import Callable, Iterable, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx

from gistgate.core.utils import first_line

aten = torch.ops.aten
Program = Callable[..., tuple[Tensor, ...]]
"""Takes tensors of the shapes that it was built for."""
HEAVY = 1 << 28
"""Bytes of weights whose reading takes a processor so long that calling kernels costs nothing."""
FEWEST_LAYERS = 3
"""Fewer layers are compiled together with the rest."""
LIKE = "like"
"""Key of a node's `meta`: size, strides, dtype and device of its tensor, or None."""
PART = "part"
"""Key of a node's `meta`: the number of the part that it belongs to."""


class UnsupportedError(Exception):
    """This function cannot become a program; the message is the part of a sentence that says
    why.
    """


def build(
    function: Program,
    example: Sequence[Tensor],
    layers: Sequence[nn.Module],
    compiles: bool,
    shared: MutableMapping[str, Program],
) -> Program:
    """Trace and compile `function` for tensors like `example`, or raise `UnsupportedError`;
    `shared`: compiled parts.
    """
    with torch.inference_mode(False), torch.no_grad():
        graph = trace(function, example, layers)
        if example[0].device.type == "cuda":
            join_products(graph)
        if not compiles:
            return graph
        if num_bytes([*graph.parameters(), *graph.buffers()]) < HEAVY:
            return compiled(graph, example, small=True)
        return chained(graph, example, shared) or compiled(graph, example)


def trace(
    function: Program,
    example: Sequence[Tensor],
    layers: Sequence[nn.Module],
) -> fx.GraphModule:
    """The operations of `function` as a graph module; a new part begins before and behind each of
    `layers`.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    part = 0

    def cut(*_: Any) -> None:
        nonlocal part
        for node in reversed(get_proxy_mode().tracer.graph.nodes):  # type: ignore[union-attr]
            if PART in node.meta:
                break
            node.meta[PART] = part
        part += 1

    hooks = [layer.register_forward_pre_hook(cut) for layer in layers]
    hooks += [layer.register_forward_hook(cut) for layer in layers]
    try:
        # Without values nothing is written into the memory that the example brings along, and no
        # branch can be taken that another round would not take.
        fakes = [mode.from_tensor(tensor) for tensor in example]
        with mode:
            graph: fx.GraphModule = make_fx(function, _allow_non_fake_inputs=True)(*fakes)
    except UnsupportedError:
        raise
    except Exception as error:  # whatever a model or a rule does that a graph cannot hold
        raise UnsupportedError(f"it cannot be traced ({first_line(error)})") from error
    finally:
        for hook in hooks:
            hook.remove()
    # Leave no other tensor of the tracing behind: the compiler begins its own.
    for node in graph.graph.nodes:
        value = constant(graph, node) if node.op == "get_attr" else node.meta.get("val")
        node.meta = {LIKE: likeness(value), PART: node.meta.get(PART, part)}
    return graph


def constant(graph: fx.GraphModule, node: fx.Node) -> Any:
    """What a node of the graph holds, such as a weight."""
    return attrgetter(str(node.target))(graph)


def likeness(value: Any) -> tuple[Any, ...] | None:
    """Size, strides, dtype and device of a tensor; None of anything else."""
    if not isinstance(value, Tensor):
        return None
    return tuple(value.shape), value.stride(), value.dtype, value.device


def empty_like(node: fx.Node) -> Tensor:
    """A tensor as a node gives it, without values."""
    size, strides, dtype, device = node.meta[LIKE]
    return torch.empty_strided(size, strides, dtype=dtype, device=device)


def num_bytes(tensors: Iterable[Tensor]) -> int:
    """The bytes of all these tensors."""
    return sum(tensor.nbytes for tensor in tensors)


def join_products(graph: fx.GraphModule) -> None:
    """Join the weights of products that read the same tensor: a GPU reads a small one no faster
    than a large one.
    """
    groups: dict[object, list[Any]] = {}
    nodes: list[Any] = list(graph.graph.nodes)
    for node in nodes:
        if node.target not in (aten.mm.default, aten.addmm.default):
            continue
        *bias, x, weight = node.args
        constants = [*bias, *weight.all_input_nodes[:1]]
        if weight.target is aten.t.default and all(part.op == "get_attr" for part in constants):
            same = (x.target, x.args) if x.target is aten.view.default else x
            groups.setdefault((node.target, same, node.meta[PART]), []).append(node)
    several = [group for group in groups.values() if len(group) > 1]
    for number, group in enumerate(several):
        join(graph, group, f"joined_{number}")
    graph.graph.eliminate_dead_code()
    graph.recompile()


def join(graph: fx.GraphModule, products: Sequence[Any], name: str) -> None:
    """Put one product in place of several with the same input, and slices of it behind it."""
    first = products[0]
    weights = [product.args[-1].args[0] for product in products]
    biases = [product.args[:-2] for product in products]
    create = graph.graph.call_function
    with graph.graph.inserting_before(first):
        bias = [joined(graph, part, f"{name}_bias") for part in zip(*biases)]
        weight = create(aten.t.default, (joined(graph, weights, name),))
        whole = create(first.target, (*bias, first.args[-2], weight))
        whole.meta = weight.meta = {LIKE: None, PART: first.meta[PART]}
        start = 0
        for product, part in zip(products, weights):
            end = start + part.meta[LIKE][0][0]
            piece = create(aten.slice.Tensor, (whole, 1, start, end))
            piece.meta = dict(product.meta)
            product.replace_all_uses_with(piece)
            start = end


def joined(graph: fx.GraphModule, nodes: Sequence[Any], name: str) -> fx.Node:
    """A node for the tensors of these nodes one behind the other; they become views of it, unless
    they are already.
    """
    tensors = [constant(graph, node) for node in nodes]
    first = tensors[0]
    sizes = [len(tensor) for tensor in tensors]
    if all(follows(before, behind) for before, behind in pairwise(tensors)):
        size = (sum(sizes), *first.shape[1:])
        whole = first.as_strided(size, first.stride(), first.storage_offset())
    else:
        whole = torch.cat(tensors)
        for tensor, part in zip(tensors, whole.split(sizes)):
            tensor.data = part
    graph.register_buffer(name, whole)
    node = graph.graph.get_attr(name)
    node.meta = {LIKE: likeness(whole), PART: nodes[0].meta[PART]}
    return node


def follows(before: Tensor, behind: Tensor) -> bool:
    """Whether one tensor begins where another one ends, in the same storage."""
    storages = {tensor.untyped_storage().data_ptr() for tensor in (before, behind)}
    return len(storages) == 1 and behind.data_ptr() == before.data_ptr() + before.nbytes


def compiled(graph: fx.GraphModule, example: Sequence[Tensor], small: bool = False) -> Program:
    """The graph as machine code; on a processor small ones, where it pays, are called from C++."""
    import torch._inductor as inductor

    on_cpu = all(tensor.device.type == "cpu" for tensor in example)
    options = {"cpp_wrapper": True} if on_cpu and small else {}
    try:
        program: Program = inductor.compile(graph, list(example), options=options)
    except Exception as error:
        raise UnsupportedError(f"it cannot be compiled ({first_line(error)})") from error
    return program


class Part:
    """A piece of a graph that is a program of its own."""

    def __init__(self, nodes: Sequence[fx.Node]) -> None:
        inside = {*nodes}
        inputs = dict.fromkeys(chain.from_iterable(node.all_input_nodes for node in nodes))
        self.nodes = nodes
        self.reads = [node for node in inputs if node not in inside]
        """Nodes of other parts that it reads."""
        self.gives = [node for node in nodes if node.users.keys() - inside]
        """Its nodes that others read."""
        self.spent: list[fx.Node] = []
        """Nodes that nobody needs behind it: long prompts make large tensors."""

    def module(self) -> fx.GraphModule:
        """The operations as a graph of its own, whose code is the same where the operations are."""
        graph = fx.Graph()
        copies = {node: graph.placeholder(f"read_{i}") for i, node in enumerate(self.reads)}
        for number, node in enumerate(self.nodes):
            args: Any = fx.node.map_arg(node.args, copies.__getitem__)
            kwargs: Any = fx.node.map_arg(node.kwargs, copies.__getitem__)
            copies[node] = graph.create_node(node.op, node.target, args, kwargs, f"value_{number}")
        graph.output(tuple(copies[node] for node in self.gives))
        return fx.GraphModule({}, graph)

    def program(
        self,
        present: dict[fx.Node, Tensor],
        shared: MutableMapping[str, Program],
    ) -> Program:
        """The part compiled, or an equal one that is already; some tensors are `present`."""
        module = self.module()
        key = f"{module.code} {[node.meta[LIKE] for node in self.reads]}"
        program = shared.get(key)
        if program is None:
            reads = [present[node] if node in present else empty_like(node) for node in self.reads]
            program = compiled(module, reads)
            shared[key] = program
        return program


@dataclass
class Chain:
    """A graph as programs that are called one after the other; a `Program`."""

    inputs: list[fx.Node]
    constants: dict[fx.Node, Tensor]
    outputs: Sequence[fx.Node]
    calls: list[tuple[Program, Part]]

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        values = self.constants | dict(zip(self.inputs, tensors))
        for program, part in self.calls:
            results = program(*(values[node] for node in part.reads))
            values.update(zip(part.gives, results))
            for node in part.spent:
                del values[node]
        return tuple(values[node] for node in self.outputs)


def chained(
    graph: fx.GraphModule,
    example: Sequence[Tensor],
    shared: MutableMapping[str, Program],
) -> Chain | None:
    """The graph as a chain in which equal parts are compiled once; None with few parts, or if one
    gives no tensor.
    """
    groups: dict[Any, list[fx.Node]] = {}
    for node in graph.graph.nodes:
        group = node.meta[PART] if node.op == "call_function" else node.op
        groups.setdefault(group, []).append(node)
    weights = groups.pop("get_attr", [])
    inputs = groups.pop("placeholder")
    outputs: Any = groups.pop("output")[0].args[0]
    parts = [Part(nodes) for nodes in groups.values()]
    tensors = chain.from_iterable([weights, *(part.gives for part in parts)])
    if len(parts) < FEWEST_LAYERS or not all(node.meta[LIKE] for node in tensors):
        return None
    constants = {node: constant(graph, node).detach() for node in weights}
    present = constants | dict(zip(inputs, example))
    calls = [(part.program(present, shared), part) for part in parts]
    needed = {*present, *outputs}
    for part in reversed(parts):
        part.spent = [node for node in (*part.gives, *part.reads) if node not in needed]
        needed.update(part.spent)
    return Chain(inputs, constants, outputs, calls)


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


class Captured:
    """A program that a CUDA graph replays, in `fixed` memory that it writes; the next replay
    overwrites results.
    """

    warm_ups = 3
    """Runs before the capture, so that libraries have allocated and tuned what they need."""

    def __init__(
        self,
        program: Program,
        fixed: Sequence[Tensor],
        example: Sequence[Tensor],
    ) -> None:
        # The graph reads its constants where they lie, so that they have to live on.
        self.program = program
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
        self.graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(self.warm_ups):
                self.program(*self.fixed, *self.inputs)
        torch.cuda.current_stream().wait_stream(stream)
        # Matrix products take their scratch memory anew, so that the graph keeps what it recorded.
        # PyTorch shares this memory among all that runs on a stream, and its own graphs give it
        # back: a graph that had recorded the shared one would write into memory of somebody else.
        # For the same reason no other thread may work on a GPU meanwhile.
        torch._C._cuda_clearCublasWorkspaces()
        try:
            with torch.cuda.graph(self.graph, stream=stream):
                self.outputs = self.program(*self.fixed, *self.inputs)
        finally:
            torch._C._cuda_clearCublasWorkspaces()

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Replay for `fixed`, which is known, and fresh inputs."""
        for held, fresh in zip(self.inputs, tensors[len(self.fixed) :]):
            held.copy_(fresh, non_blocking=True)
        with torch.cuda.device(self.device):
            self.graph.replay()
        return self.outputs
