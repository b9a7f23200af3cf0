"""SENSE's datastore, and the drafter that knows the same texts: `python -m pipeline.retrieval`
builds models/datastore from the strict answers to training prompts. Axis letters: B texts, T
tokens of the longest, N states, D width of a state, P width of a key.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.decomposition import IncrementalPCA
from sklearn.preprocessing import StandardScaler
from sklearn.utils import gen_batches
from torch import Tensor
from transformers import PreTrainedModel

from gistgate.core.features import tap
from gistgate.core.files import read_json_lines
from gistgate.core.identity import identify_model, identify_tokenizer
from gistgate.core.progress import bar
from gistgate.core.reader import contiguous_rows
from gistgate.core.utils import UserError
from gistgate.retrieval.corpus import CorpusDrafter, SuffixArray
from gistgate.retrieval.index import fill, fits_exactly, import_faiss, new_index
from gistgate.retrieval.store import Datastore, DatastoreConfig, Projection
from pipeline.pair.pair import Pair, load_pair
from pipeline.params import read_params
from pipeline.paths import DATASTORE, prompts_of, reference_of
from pipeline.run import run

PROMPTS = prompts_of("train")
ANSWERS = reference_of("train")
BATCH = 16  # texts that are read at once
CHUNK = 1 << 14  # states that are fitted and projected at once


@dataclass(frozen=True)
class Text:
    """A prompt and its strict answer, as token ids."""

    prompt: list[int]
    answer: list[int]


def training_texts() -> list[Text]:
    """Training prompts with their strict answers."""
    answers = {row["id"]: row["ids"] for row in read_json_lines(ANSWERS)}
    return [Text(row["ids"], answers[row["id"]]) for row in read_json_lines(PROMPTS)]


def main() -> None:
    params = read_params()
    texts = training_texts()
    layer = params.datastore.layer
    key_size = params.datastore.key_size
    num_keys = sum(len(text.answer) for text in texts)
    # An index that cannot be made is refused before the states are computed, which may take hours.
    index = None if fits_exactly(num_keys) else new_index(num_keys, key_size)
    store, explained = build(load_pair(params), texts, layer, key_size)
    store.save(DATASTORE, index and index_writer(store, index))
    size = sum(path.stat().st_size for path in DATASTORE.iterdir())
    print(f"{DATASTORE}: {num_keys} keys, {explained:.1%} of the variance, {size / 1e6:.1f} MB")


def index_writer(store: Datastore, index: Any) -> Callable[[Path], None]:
    """Fills the index with the keys and writes it."""
    return lambda path: import_faiss().write_index(fill(index, store.keys), str(path))


def build(
    pair: Pair,
    texts: Sequence[Text],
    layer: str,
    size: int,
) -> tuple[Datastore, float]:
    """A store of these texts, and the share of the standardised variance that its keys of width
    `size` keep.
    """
    texts = [text for text in texts if text.answer]
    num = sum(len(text.answer) for text in texts)
    width = pair.target.config.get_text_config().hidden_size
    if not 1 <= size <= min(num, width):
        raise UserError(
            f"params.yaml: 'datastore.key_size' is {size}, and there are {num} states of width"
            f" {width}."
        )
    batches = [texts[start : start + BATCH] for start in range(0, len(texts), BATCH)]
    scaler = StandardScaler()
    parts = []
    for batch in bar(batches, title="states", unit="batch"):
        states = states_of(pair.target, batch, layer).numpy()
        scaler.partial_fit(states)
        parts.append(states)
    states_ND = np.concatenate(parts)
    projection, explained = fit(states_ND, scaler, size)
    keys = [projection(torch.from_numpy(states_ND[chunk])) for chunk in gen_batches(num, CHUNK)]
    identities = (identify_model(pair.target), identify_tokenizer(pair.tokenizer))
    provenance = {"split": "train", "prompts": len(texts), "answers": "strict"}
    config = DatastoreConfig(*identities, layer, 0, 0, provenance=provenance)
    answers = [text.answer for text in texts]
    return Datastore.build(config, projection, torch.cat(keys), answers), explained


@torch.inference_mode()
def states_of(target: PreTrainedModel, texts: Sequence[Text], layer: str) -> Tensor:
    """The states that predicted the answers' tokens, in order: [n, D] on the CPU."""
    rows = [torch.tensor([*text.prompt, *text.answer]) for text in texts]
    ids_BT = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    width = ids_BT.shape[1]
    mask_BT = torch.arange(width) < torch.tensor([len(row) for row in rows])[:, None]
    keep = width - min(len(text.prompt) for text in texts) + 1
    device = target.device
    with tap(target, [layer]) as seen, contiguous_rows(target):
        target(
            input_ids=ids_BT.to(device),
            attention_mask=mask_BT.long().to(device),
            logits_to_keep=keep,
        )
    h_BTD = seen[layer].float().cpu()
    # "post" is seen where logits are asked for, other states everywhere.
    cut = width - h_BTD.shape[1] + 1
    states = []
    for h_TD, text in zip(h_BTD, texts):
        begin = len(text.prompt) - cut
        states.append(h_TD[begin : begin + len(text.answer)])
    return torch.cat(states)


def fit(
    states_ND: np.ndarray,
    scaler: Any,
    size: int,
) -> tuple[Projection, float]:
    """Principal components of the standardised states, chunk by chunk, and the share of variance
    they explain.
    """
    pca = IncrementalPCA(size)
    for chunk in gen_batches(len(states_ND), max(CHUNK, size), min_batch_size=size):
        pca.partial_fit(scaler.transform(states_ND[chunk]))
    fitted = (scaler.mean_, scaler.scale_, pca.components_, pca.mean_)
    projection = Projection.compose(*(torch.from_numpy(part).double() for part in fitted))
    return projection, float(pca.explained_variance_ratio_.sum())


def corpus_drafter() -> CorpusDrafter:
    """The drafter that looks these texts up (REST, arXiv 2311.08252)."""
    return CorpusDrafter(
        SuffixArray.build([*text.prompt, *text.answer] for text in training_texts())
    )


if __name__ == "__main__":
    run(main)
