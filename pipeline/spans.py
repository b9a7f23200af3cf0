"""What the rule `judge` learns from mismatches: `python -m pipeline.spans` trains models/judge on
labels of whole spans, the mismatch and the draft tokens behind it in its block (arXiv 2501.19309).
"""

import torch

from gistgate.core.block import Block
from gistgate.core.features import extract
from gistgate.core.files import save_tensors
from pipeline.decode import strict_decoder
from pipeline.heads.train import train_head
from pipeline.labels import schema
from pipeline.labels.features import Replay, divergence
from pipeline.pair.pair import load_pair
from pipeline.params import Params, read_params
from pipeline.paths import MODELS, SPANS
from pipeline.run import run
from pipeline.task import read_prompts, request_of


def main() -> None:
    params = read_params()
    read_spans(params)
    train_head("logistic", MODELS / "judge", [SPANS], "judge", params, params.train.span_features)


def read_spans(params: Params) -> None:
    """Label the tokens of every span as its mismatch is labelled."""
    torch.set_grad_enabled(False)
    features = tuple(dict.fromkeys((*params.train.span_features, "scalars")))
    pair = load_pair(params)
    prompts = read_prompts("train")
    decoder = strict_decoder(pair, params.decoding.block)
    replay = Replay(decoder, prompts, features, params.label.batch_size)
    table, texts = schema.read_labels()
    rounds = replay.rounds(table, texts, **request_of(prompts, pair))
    parts = [span_rows(part, block, features, params.train.span) for part, block in rounds]
    columns = {**schema.ROWS, **dict.fromkeys(features, schema.FEATURE)}
    spans = schema.checked(schema.concatenated(parts), columns, SPANS)
    save_tensors(SPANS / "rows-00000.safetensors", spans, {"features": ",".join(features)})
    print(f"{schema.num_rows(spans)} tokens in the spans of {schema.num_rows(table)} mismatches")


def span_rows(
    part: schema.Table,
    block: Block,
    features: tuple[str, ...],
    span: int,
) -> schema.Table:
    """The first `span` draft tokens of every record's block, each with the record's label."""
    at_B, at_K = block.valid[:, :span].nonzero(as_tuple=True)
    rows = {name: values[at_B, at_K].float() for name, values in extract(block, features).items()}
    rows["kl"] = divergence(block)[at_B]  # of the mismatch, as the label is
    at_B = at_B.cpu()
    rows["position"] = part["position"][at_B] + at_K.cpu()
    rows |= {name: part[name][at_B] for name in ("problem", "policy", "kept")}
    return {name: column.cpu() for name, column in rows.items()}


if __name__ == "__main__":
    run(main)
