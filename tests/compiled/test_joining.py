"""Products that read the same tensor become one, without a second copy of the weights."""

import pytest
import torch

from gistgate.compiled import program
from gistgate.compiled.memory import allocate, attending_to_slots, forward, layers_of
from tests.architectures import tiny_model

PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)


@pytest.mark.parametrize("kind", ["llama", "qwen2"])  # without and with biases
def test_joined_products_are_the_single_ones(kind: str):
    model = tiny_model(kind, num_hidden_layers=4)
    memory, ids = allocate(model, 2, 256), torch.randint(0, 50, (2, 3))
    example = [*memory, ids, torch.arange(3).expand(2, 3).contiguous()]

    def read(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        *kept, ids, positions = tensors
        return (forward(model, kept, ids, positions, 3),)

    def fresh() -> list[torch.Tensor]:
        return [tensor.clone() for tensor in example]

    with attending_to_slots(model), torch.inference_mode(False), torch.no_grad():
        (expected,) = read(*fresh())
        graphs = [program.trace(read, example, layers_of(model)) for _ in range(2)]
        counts = [sum(node.target in PRODUCTS for node in graphs[0].graph.nodes)]
        for graph in graphs:
            program.join_products(graph)
        counts.append(sum(node.target in PRODUCTS for node in graphs[0].graph.nodes))
        assert counts == [4 * 7 + 1, 4 * 4 + 1]  # queries, keys, values; output; gate, up; down
        chain = program.chained(graphs[0], example, {})
        assert chain is not None
        for run in (
            *graphs,
            chain,
            read,
        ):  # the model's own weights are views of the joined ones and say the same
            torch.testing.assert_close(run(*fresh())[0], expected)
    whole = graphs[0].get_buffer("joined_0")
    assert whole.data_ptr() == graphs[1].get_buffer("joined_0").data_ptr()
    own = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    assert whole.untyped_storage().data_ptr() in own
