"""SENSE's datastore, and the drafters that know the same texts: `python -m pipeline.retrieval`
builds models/datastore from the strict answers to training prompts. The target's states are
streamed through a scratch file. Axis letters: B texts, T tokens of the longest, N states, D width
of a state, P width of a key."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from gistgate.core.drafter import Drafter
from gistgate.core.features import tap
from gistgate.core.files import read_json_lines
from gistgate.core.identity import identify_model, identify_tokenizer
from gistgate.core.reader import contiguous_rows
from gistgate.core.utils import UserError
from gistgate.drafters.adaptive import AdaptiveDrafter, Option
from gistgate.drafters.model import ModelDrafter
from gistgate.drafters.text import PromptLookup
from gistgate.models.sources import CORPUS, STORED, Sources, make_drafter
from gistgate.retrieval.corpus import CorpusDrafter, SuffixArray
from gistgate.retrieval.index import fill, fits_exactly, import_faiss, new_index
from gistgate.retrieval.store import Datastore, DatastoreConfig, Projection
from pipeline.pair.pair import Pair, load_pair
from pipeline.params import read_params
from pipeline.paths import DATASTORE, prompts_of, reference_of
from pipeline.run import bar, run

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
    prompts = read_json_lines(PROMPTS)
    if missing := [row["id"] for row in prompts if row["id"] not in answers]:
        raise UserError(
            f"{ANSWERS} has no answer to '{missing[0]}'. Run `python -m pipeline.stages.reference`"
            " again."
        )
    return [Text(row["ids"], answers[row["id"]]) for row in prompts]


def main() -> None:
    params = read_params()
    texts = training_texts()
    own = params.datastore
    num_keys = sum(len(text.answer) for text in texts)
    # An index that cannot be made is refused before the states are computed, which may take hours.
    index = None if fits_exactly(num_keys) else new_index(num_keys, own.key_size)
    store, explained = build(load_pair(params), texts, own.layer, own.key_size)
    store.save(DATASTORE, index_writer(store, index))
    size = sum(path.stat().st_size for path in DATASTORE.iterdir())
    print(f"{DATASTORE}: {num_keys} keys, {explained:.1%} of the variance, {size / 1e6:.1f} MB")


def index_writer(store: Datastore, index: Any | None) -> Callable[[Path], None] | None:
    """Fills the index with the keys and writes it; None without one."""
    return (
        None
        if index is None
        else lambda path: import_faiss().write_index(fill(index, store.keys), str(path))
    )


def build(pair: Pair, texts: Sequence[Text], layer: str, size: int) -> tuple[Datastore, float]:
    """A store of these texts, and the share of the standardised variance that its keys of width
    `size` keep.
    """
    from sklearn.preprocessing import StandardScaler

    texts = [text for text in texts if text.answer]
    num = sum(len(text.answer) for text in texts)
    width = pair.target.config.get_text_config().hidden_size
    if not 1 <= size <= min(num, width):
        raise UserError(
            f"params.yaml: 'datastore.key_size' is {size}, and there are {num} states of width"
            f" {width}."
        )
    with TemporaryFile() as scratch:
        states_ND = np.memmap(scratch, np.float32, "w+", shape=(num, width))
        scaler = StandardScaler()
        place = 0
        total = -(-len(texts) // BATCH)
        for states in bar(
            states_of(pair.target, texts, layer), title="states", unit="batch", total=total
        ):
            states_ND[place : place + len(states)] = states.numpy()
            scaler.partial_fit(states.numpy())
            place += len(states)
        projection, explained = fit(states_ND, scaler, size)
        keys_NP = torch.cat(
            [projection(torch.from_numpy(np.array(part))).half() for part in chunks(states_ND, 1)]
        )
    of_pair = identify_model(pair.target), identify_tokenizer(pair.tokenizer)
    provenance = {"split": "train", "prompts": len(texts), "answers": "strict"}
    config = DatastoreConfig(*of_pair, layer, 0, 0, provenance=provenance)
    return Datastore.build(config, projection, keys_NP, [text.answer for text in texts]), explained


@torch.inference_mode()
def states_of(target: PreTrainedModel, texts: Sequence[Text], layer: str) -> Iterator[Tensor]:
    """The states that predicted the answers' tokens, in order: [n, D] on the CPU for every batch of
    texts.
    """
    for start in range(0, len(texts), BATCH):
        batch = texts[start : start + BATCH]
        rows = [torch.tensor([*text.prompt, *text.answer]) for text in batch]
        ids_BT = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        mask_BT = torch.arange(ids_BT.shape[1]) < torch.tensor([len(row) for row in rows])[:, None]
        keep = ids_BT.shape[1] - min(len(text.prompt) for text in batch) + 1
        with tap(target, [layer]) as seen, contiguous_rows(target):
            device = target.device
            target(
                input_ids=ids_BT.to(device),
                attention_mask=mask_BT.long().to(device),
                logits_to_keep=keep,
            )
        h_BTD = seen[layer].float().cpu()
        cut = (
            ids_BT.shape[1] - h_BTD.shape[1]
        )  # "post" is seen where logits are asked for, other states everywhere
        begins = [len(text.prompt) - 1 - cut for text in batch]
        yield torch.cat([h_BTD[i, at : at + len(batch[i].answer)] for i, at in enumerate(begins)])


def fit(states_ND: np.ndarray, scaler: Any, size: int) -> tuple[Projection, float]:
    """Principal components of the standardised states, chunk by chunk, and the share of variance
    they explain.
    """
    from sklearn.decomposition import IncrementalPCA

    pca = IncrementalPCA(size)
    for part in chunks(states_ND, size):
        pca.partial_fit(scaler.transform(part))
    fitted = [
        torch.from_numpy(part).double()
        for part in (scaler.mean_, scaler.scale_, pca.components_, pca.mean_)
    ]
    return Projection.compose(*fitted), float(pca.explained_variance_ratio_.sum())


def chunks(states_ND: np.ndarray, least: int) -> Iterator[np.ndarray]:
    """Consecutive parts of at most 2 `CHUNK` states, and of `least` where there are so many: the
    fit asks for that.
    """
    starts = list(range(0, len(states_ND), max(CHUNK, least)))
    if len(starts) > 1 and len(states_ND) - starts[-1] < least:
        starts.pop()
    for start, end in zip(starts, [*starts[1:], len(states_ND)], strict=True):
        yield states_ND[start:end]


def retrieval_drafter(name: str, pair: Pair) -> Drafter | None:
    """SENSE's drafter, the corpus (REST), or the choice, whose costs are set: texts must not depend
    on the clock.
    """
    if name in STORED:
        if not DATASTORE.is_dir():
            raise UserError(f"{DATASTORE} is missing. Run `dvc repro datastore` first.")
        return make_drafter(name, Sources(pair.target, datastore=DATASTORE))
    corpus = CorpusDrafter(
        SuffixArray.build([*text.prompt, *text.answer] for text in training_texts())
    )
    if name == CORPUS:
        return corpus
    costs = read_params().choice
    options = [
        Option(corpus, prior=costs.prior),
        Option(PromptLookup(), min_match=costs.min_match, prior=costs.prior),
        Option(ModelDrafter(pair.draft_model), cost=costs.cost, prior=costs.prior),
    ]
    return AdaptiveDrafter(options, costs.verify, block=costs.block, weight=costs.weight)


if __name__ == "__main__":
    run(main)
