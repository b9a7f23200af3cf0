"""Build the datastore of `SenDrafter`: the target's states along the strict answers of training prompts.

    python -m pipeline.retrieval      -> models/datastore

The size and the build rate go to reports/retrieval/datastore.json.

Reads data/prompts/train.jsonl and data/reference/train.jsonl and nothing of any other split. The states are streamed:
they lie in a file of scratch, and memory holds one chunk of them.

Axis letters: B texts, T tokens of the longest, N states, D width of a state, P width of a key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from time import perf_counter
from typing import Any

import numpy as np
import torch
from sklearn.decomposition import IncrementalPCA
from sklearn.preprocessing import StandardScaler
from torch import Tensor
from transformers import PreTrainedModel

from gistgate.core.drafter import Drafter
from gistgate.core.features import tap
from gistgate.core.files import read_json_lines, write_json
from gistgate.core.identity import identify_model, identify_tokenizer
from gistgate.core.reader import contiguous_rows
from gistgate.core.utils import UserError
from gistgate.drafters.choice import ChoiceDrafter, Option
from gistgate.drafters.model import ModelDrafter
from gistgate.drafters.text import PromptLookup
from gistgate.models.build import STORED, Sources, make_drafter
from gistgate.retrieval.corpus import CorpusDrafter
from gistgate.retrieval.index import POINTS_PER_LIST, fill, fits_exactly, new_index, num_lists, write_index
from gistgate.retrieval.store import Datastore, DatastoreConfig, Projection
from gistgate.retrieval.suffix_array import SuffixArray
from pipeline.decode import OF_STUDIES, StudyDrafter
from pipeline.pair.pair import Pair, load_pair
from pipeline.params import FILE_RETRIEVAL as FILE
from pipeline.params import REPORTS, ChoiceParams, read_params, read_retrieval_params
from pipeline.paths import DATASTORE, prompts_of, reference_of
from pipeline.run import bar, run

# ---- What retrieval may know: the training prompts with the target's strict answers, and nothing of any other split.


PROMPTS, ANSWERS = prompts_of("train"), reference_of("train")


@dataclass(frozen=True)
class Text:
    """A prompt and its strict answer, as token ids."""

    prompt: list[int]
    answer: list[int]


def training_texts() -> list[Text]:
    """Training prompts with their strict answers.

    Raises:
        UserError: a prompt without an answer.
    """
    answers = {row["id"]: row["ids"] for row in read_json_lines(ANSWERS)}
    prompts = read_json_lines(PROMPTS)
    missing = [row["id"] for row in prompts if row["id"] not in answers]
    if missing:
        raise UserError(f"{ANSWERS} has no answer to '{missing[0]}'. Run `python -m pipeline.stages.reference` again.")
    return [Text(row["ids"], answers[row["id"]]) for row in prompts]


REPORT = REPORTS / "datastore.json"
BATCH = 16
"""Texts that are read at once."""
CHUNK = 1 << 14
"""States that are fitted and projected at once."""


def main() -> None:
    own, texts, started = read_retrieval_params().datastore, training_texts(), perf_counter()
    index = planned_index(sum(len(text.answer) for text in texts), own.key_size)
    store, explained = build(load_pair(read_params()), texts, own.layer, own.key_size)
    store.save(DATASTORE, index_writer(store, index))
    seconds = perf_counter() - started
    report: dict[str, Any] = {
        "prompts": len(texts),
        "keys": store.config.num_keys,
        "key_size": store.config.key_size,
        "layer": store.config.layer,
        "explained_variance": explained,
        "bytes": sum(path.stat().st_size for path in DATASTORE.iterdir()),
        "seconds": seconds,
        "keys_per_second": store.config.num_keys / seconds,
    }
    write_json(REPORT, report)
    print(f"{report['keys']} keys, {report['bytes'] / 1e6:.1f} MB, {report['keys_per_second']:.0f} keys per second")


def planned_index(num_keys: int, size: int) -> Any | None:
    """An empty inverted file for so many keys of that width; None where a CPU compares them all quickly.

    Asked for before the states are computed, which may take hours.

    Raises:
        UserError: FAISS is missing, or wants another width.
    """
    return None if fits_exactly(num_keys) else new_index("ivf", num_keys, size)


def index_writer(store: Datastore, index: Any | None) -> Callable[[Path], None] | None:
    """Fills the index with the keys and writes it; None without one."""
    if index is None:
        return None
    keys_NP = store.keys
    order = torch.randperm(len(keys_NP), generator=torch.Generator().manual_seed(0))
    sample = keys_NP[order[: POINTS_PER_LIST * num_lists(len(keys_NP))]]
    filled = fill(index, sample, keys_NP.split(CHUNK))
    return lambda path: write_index(filled, path)


def build(pair: Pair, texts: Sequence[Text], layer: str, size: int) -> tuple[Datastore, float]:
    """A store of these texts, and the share of the standardised variance that its keys keep.

    Raises:
        UserError: more components than there are states or dimensions.
    """
    texts = [text for text in texts if text.answer]
    num, width = sum(len(text.answer) for text in texts), pair.target.config.get_text_config().hidden_size
    if not 1 <= size <= min(num, width):
        raise UserError(f"datastore: keys of width {size} need as many of the {num} states and {width} dimensions.")
    with TemporaryFile() as scratch:
        states_ND = np.memmap(scratch, np.float32, "w+", shape=(num, width))
        scaler, place = StandardScaler(), 0
        total = -(-len(texts) // BATCH)
        for states in bar(states_of(pair.target, texts, layer), title="states", unit="batch", total=total):
            states_ND[place : place + len(states)] = states.numpy()
            scaler.partial_fit(states.numpy())
            place += len(states)
        projection, explained = fit(states_ND, scaler, size)
        keys_NP = torch.cat([projection(torch.from_numpy(np.array(part))).half() for part in chunks(states_ND, 1)])
    config = DatastoreConfig(
        identify_model(pair.target),
        identify_tokenizer(pair.tokenizer),
        layer,
        0,
        0,
        provenance={"split": "train", "prompts": len(texts), "answers": "strict"},
    )
    return Datastore.build(config, projection, keys_NP, [text.answer for text in texts]), explained


@torch.inference_mode()
def states_of(target: PreTrainedModel, texts: Sequence[Text], layer: str) -> Iterator[Tensor]:
    """The states that predicted the answers' tokens, in order: [n, D] on the CPU for every batch of texts."""
    for start in range(0, len(texts), BATCH):
        batch = texts[start : start + BATCH]
        rows = [torch.tensor([*text.prompt, *text.answer]) for text in batch]
        ids_BT = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        mask_BT = torch.arange(ids_BT.shape[1]) < torch.tensor([len(row) for row in rows])[:, None]
        keep = ids_BT.shape[1] - min(len(text.prompt) for text in batch) + 1
        with tap(target, [layer]) as seen, contiguous_rows(target):
            device = target.device
            target(input_ids=ids_BT.to(device), attention_mask=mask_BT.long().to(device), logits_to_keep=keep)
        h_BTD = seen[layer].float().cpu()
        cut = ids_BT.shape[1] - h_BTD.shape[1]  # "post" is seen where logits are asked for, other states everywhere
        yield torch.cat(
            [
                h_BTD[row, len(text.prompt) - 1 - cut : len(text.prompt) + len(text.answer) - 1 - cut]
                for row, text in enumerate(batch)
            ]
        )


def fit(states_ND: np.ndarray, scaler: StandardScaler, size: int) -> tuple[Projection, float]:
    """Principal components of the standardised states, chunk by chunk, and the share of variance they explain."""
    pca = IncrementalPCA(size)
    for part in chunks(states_ND, size):
        pca.partial_fit(scaler.transform(part))
    fitted: list[Any] = [scaler.mean_, scaler.scale_, pca.components_, pca.mean_]
    return Projection.compose(*(torch.from_numpy(part).double() for part in fitted)), float(
        pca.explained_variance_ratio_.sum()
    )


def chunks(states_ND: np.ndarray, least: int) -> Iterator[np.ndarray]:
    """Consecutive parts of at most 2 `CHUNK` states, and of `least` where there are so many: the fit asks for that."""
    starts = list(range(0, len(states_ND), max(CHUNK, least)))
    if len(starts) > 1 and len(states_ND) - starts[-1] < least:
        starts.pop()
    for start, end in zip(starts, [*starts[1:], len(states_ND)], strict=True):
        yield states_ND[start:end]


if __name__ == "__main__":
    run(main)

# ---- Drafters by id that know more than the request: the datastore's, the corpus of training texts, and their choice.


def store_for(target: PreTrainedModel) -> Datastore:
    """The datastore of this run.

    Raises:
        UserError: there is none, or it does not fit.
    """
    check_store()
    return Datastore.load(DATASTORE, target)


def check_store() -> None:
    """Refuse to go on without the datastore of this run."""
    if not DATASTORE.is_dir():
        raise UserError(f"{DATASTORE} is missing. Run `make retrieval` in this folder first.")


def stored(name: str, pair: Pair) -> Drafter:
    """A drafter that reads the datastore of this run."""
    check_store()
    made = make_drafter(name, Sources(pair.target, datastore=DATASTORE))
    assert made is not None
    return made


def corpus(_pair: Pair) -> Drafter:
    """REST-like retrieval from prompts and answers."""
    return CorpusDrafter(SuffixArray.build([*text.prompt, *text.answer] for text in training_texts()))


def choice(pair: Pair, params: ChoiceParams | None = None) -> Any:
    """Corpus, prompt lookup and draft model, by what each promises in this row."""
    params = params or read_retrieval_params().choice
    options = [
        Option(corpus(pair)),
        Option(PromptLookup(), min_match=params.min_match),
        Option(ModelDrafter(pair.draft_model), cost=params.cost),
    ]
    return ChoiceDrafter(options, params.verify, block=params.block, prior=params.prior, weight=params.weight)


TEXTS = (PROMPTS, ANSWERS)
RETRIEVAL = {
    "corpus": StudyDrafter(corpus, TEXTS),
    **{name: StudyDrafter(partial(stored, name), (DATASTORE,)) for name in STORED},
    "choice": StudyDrafter(choice, (*TEXTS, FILE), asks_draft=True),
}
"""By id, as the methods of pipeline/studies/retrieval/params.yaml name them."""
OF_STUDIES.update(RETRIEVAL)
