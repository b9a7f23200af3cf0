"""A graph as programs that are called one after the other, the repeated ones with other weights each time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, fx

from gistgate.decoding.engines.repeats import LIKE, parts_of, read_by

Compile = Callable[[fx.GraphModule, Sequence[Tensor]], Callable[..., Any]]
"""(graph, tensors like its inputs) -> program."""


@dataclass(frozen=True)
class Call:
    """One call: what the program reads, and under which names its results are kept."""

    program: Callable[..., Any]
    reads: tuple[fx.Node, ...]
    writes: tuple[fx.Node, ...]


@dataclass(frozen=True)
class Chain:
    """All calls of a graph; a `Program`."""

    inputs: tuple[fx.Node, ...]
    constants: dict[fx.Node, Tensor]
    calls: tuple[Call, ...]
    outputs: tuple[fx.Node, ...]

    @cached_property
    def spent(self) -> list[list[fx.Node]]:
        """What nobody reads behind each call."""
        last = {node: number for number, call in enumerate(self.calls) for node in (*call.writes, *call.reads)}
        wanted = {*self.outputs, *self.inputs, *self.constants}
        return [
            [node for node, reader in last.items() if reader == number and node not in wanted]
            for number in range(len(self.calls))
        ]

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The graph's results for these inputs."""
        values = {**self.constants, **dict(zip(self.inputs, tensors, strict=True))}
        for number, call in enumerate(self.calls):
            results = call.program(*(values[node] for node in call.reads))
            values.update(zip(call.writes, results, strict=True))
            for node in self.spent[number]:  # long prompts make large tensors
                del values[node]
        return tuple(values[node] for node in self.outputs)


def chained(graph: fx.GraphModule, example: Sequence[Tensor], compile_part: Compile) -> Chain | None:
    """The graph as a chain in which what repeats is compiled once; None where nothing repeats."""
    parts = parts_of(graph.graph)
    held = [node for node in graph.graph.nodes if node.op == "get_attr"]
    handed = [node for part in parts for node in part if is_read_outside(node, part)]
    if not parts or not all(node.meta[LIKE] for node in (*held, *handed)):
        return None  # programs hand over nothing but tensors
    first, *repeated, last = parts
    inputs = tuple(node for node in graph.graph.nodes if node.op == "placeholder")
    constants = {node: constant(graph, node).detach() for node in held}
    known = {**constants, **dict(zip(inputs, example, strict=True))}
    # What one repetition gives to others or to the rest, all of them give: they are one program.
    given = sorted({place for part in repeated for place, node in enumerate(part) if is_read_outside(node, part)})

    def call(part: Sequence[fx.Node], writes: Sequence[fx.Node], program: Callable[..., Any] | None = None) -> Call:
        reads = reads_of(part)
        if program is None:
            likes = [known[node] if node in known else like(node) for node in reads]
            program = compile_part(module_of(part, reads, writes), likes)
        return Call(program, tuple(reads), tuple(writes))

    calls = [call(first, [node for node in first if is_read_outside(node, first)])] if first else []
    for part in repeated:
        again = calls[-1].program if part is not repeated[0] else None
        calls.append(call(part, [part[place] for place in given], again))
    if last:
        calls.append(call(last, [node for node in last if is_read_outside(node, last)]))
    (outputs,) = (node.args[0] for node in graph.graph.nodes if node.op == "output")
    return Chain(inputs, constants, tuple(calls), tuple(outputs))


def is_read_outside(node: fx.Node, part: Sequence[fx.Node]) -> bool:
    """Whether somebody outside of the part reads this node of it."""
    return any(user not in part for user in node.users)


def reads_of(part: Sequence[fx.Node]) -> list[fx.Node]:
    """What a part reads from outside, in the order in which it is met."""
    inside = set(part)
    return list(dict.fromkeys(read for node in part for read in read_by(node) if read not in inside))


def module_of(part: Sequence[fx.Node], reads: Sequence[fx.Node], writes: Sequence[fx.Node]) -> fx.GraphModule:
    """The operations of a part as a graph of its own."""
    graph = fx.Graph()
    copies = {node: graph.placeholder(f"read_{number}") for number, node in enumerate(reads)}
    for node in part:
        copies[node] = graph.node_copy(node, lambda read: copies[read])
        copies[node].meta = {}
    graph.output(tuple(copies[node] for node in writes))
    return fx.GraphModule({}, graph)


def constant(graph: fx.GraphModule, node: fx.Node) -> Any:
    """What a node of the graph holds, such as a weight."""
    return attrgetter(str(node.target))(graph)


def like(node: fx.Node) -> Tensor:
    """An empty tensor such as the node gives."""
    size, strides, dtype, device = node.meta[LIKE]
    return torch.empty_strided(size, strides, dtype=dtype, device=device)
