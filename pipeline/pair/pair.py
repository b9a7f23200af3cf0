"""Load a target and what drafts for it as models/pairs/<pair>.yaml names them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from gistgate.core.attention import keep_freed_memory
from gistgate.core.reader import num_ids
from gistgate.core.utils import UserError, first_line, is_out_of_memory
from gistgate.models.lighter import check_kind, quantise
from gistgate.models.loading import (
    RETRIEVAL,
    Size,
    check_gguf,
    check_memory,
    check_same_tokenizer,
    check_smaller,
    hub_remedy,
    load_draft_tokenizer,
    warn_generation_config,
    weight_size,
    whole_model,
)
from pipeline.params import MODEL, block, build, nearest
from pipeline.paths import PAIRS, read_yaml

# ---- What models/pairs/<pair>.yaml says: which target, which draft model or other drafter, in which form.


@block
class ModelSource:
    """Where one model comes from."""

    model: str
    """Hub id or folder."""
    name: str | None = None
    """What gates call the model where `model` is a folder, such as the hub id that it was fetched from; None: the
    folder's own name."""
    revision: str | None = None
    """Branch, tag or commit on the hub; None takes the newest."""
    gguf_file: str | None = None
    """GGUF file in the folder or repository, unpacked to `dtype`; None reads safetensors."""
    dtype: str = "bfloat16"
    """Type of the weights in memory, a name in torch."""
    device_map: str | None = None
    """Passed to from_pretrained, such as `auto` (needs accelerate); None puts the whole model on `device`."""
    device: str | None = None
    """Device without a device_map; None takes the GPU where there is one."""
    quantise: str = "none"
    """Bits that a draft's weights are rounded to when it is loaded: int8, int4 or none."""

    def __post_init__(self) -> None:
        if self.model.startswith("~"):
            object.__setattr__(self, "model", str(Path(self.model).expanduser()))
        check_kind(self.quantise)
        if not isinstance(getattr(torch, self.dtype, None), torch.dtype):
            raise UserError(
                f"The pair names the dtype '{self.dtype}' for {self.model}, which torch does not know. "
                "Write float32, bfloat16 or float16."
            )

    @property
    def is_folder(self) -> bool:
        """A folder here rather than a hub id, which is `owner/name` or `name`."""
        return Path(self.model).is_dir() or self.model.startswith((".", "/")) or self.model.count("/") > 1

    @property
    def place_of_weights(self) -> str:
        """Device of a model without a device_map."""
        return self.device or ("cuda" if torch.cuda.is_available() else "cpu")

    @property
    def place(self) -> dict[str, Any]:
        """Arguments that every from_pretrained gets."""
        gguf = {"gguf_file": self.gguf_file} if self.gguf_file else {}
        return {"revision": self.revision or "main", "trust_remote_code": False, **gguf}


@block
class PairSource:
    """The content of a pair's file."""

    target: ModelSource
    """The model whose answers count."""
    draft: ModelSource | None = None
    """The model that proposes; None where `drafter` proposes without a model."""
    drafter: str = MODEL
    """What proposes: "model" for the draft model, or one of RETRIEVAL, which copies from the text."""
    tokenizer: str | None = None
    """Hub id or folder of the tokenizer; None takes the target's."""
    training: dict[str, Any] | None = None
    """For pairs that are trained here: keys that replace those of `pair_training`; None for ready-made models."""

    def __post_init__(self) -> None:
        if self.target.quantise != "none":
            raise UserError(
                f"The pair quantises its target {self.target.model} to {self.target.quantise}, which would change the "
                "answers that count. Only `draft` has `quantise`."
            )
        if self.drafter not in (MODEL, *RETRIEVAL):
            known = [MODEL, *RETRIEVAL]
            raise UserError(f"The pair names the drafter '{self.drafter}'. {nearest(self.drafter, known, 'drafters')}")
        if (self.draft is None) == (self.drafter == MODEL):
            raise UserError(
                f"The pair of the target {self.target.model} needs one source of drafts: a model (`draft:`), or a "
                f"drafter that copies from the text (`drafter: {RETRIEVAL[0]}` or `drafter: {RETRIEVAL[1]}`). Name one "
                "of them and leave the other away."
            )

    @property
    def names(self) -> dict[str, str]:
        """The names that are said, by `target`, `draft` and `tokenizer`."""
        said = {"target": self.target.name, "draft": self.draft and self.draft.name}
        said["tokenizer"] = self.target.name if self.tokenizer is None else None
        return {role: name for role, name in said.items() if name}

    @property
    def models(self) -> list[ModelSource]:
        """The target and, where there is one, the draft model."""
        return list(self.roles.values())

    @property
    def roles(self) -> dict[str, ModelSource]:
        """The models by "target" and "draft"."""
        return {"target": self.target} if self.draft is None else {"target": self.target, "draft": self.draft}


def read_pair(name: str, folder: Path = PAIRS) -> PairSource:
    """Read the file of a pair.

    Raises:
        UserError: there is no such pair (the nearest name is offered), nothing drafts, or its file is damaged.
    """
    path = folder / f"{name}.yaml"
    if not path.is_file():
        known = sorted(file.stem for file in folder.glob("*.yaml"))
        raise UserError(f"There is no pair '{name}' in {folder}. {nearest(name, known, 'pairs')}")
    return build(PairSource, read_yaml(path), file=str(path))


# ---- Read configurations, tokenizers and weights; every failure is one sentence that names the remedy.


T = TypeVar("T")


def load_config(source: ModelSource) -> Any:
    """The configuration of a model."""
    return attempt(source, lambda: AutoConfig.from_pretrained(source.model, **source.place))


def load_model(source: ModelSource) -> PreTrainedModel:
    """A model in its dtype on its device, without gradients, and quantised where the pair says so."""
    extra = {"device_map": source.device_map} if source.device_map else {}
    dtype = getattr(torch, source.dtype)
    model = attempt(source, lambda: whole_model(source.model, dtype=dtype, **extra, **source.place))
    if not source.device_map:
        model = model.to(source.place_of_weights)
        keep_freed_memory(source.place_of_weights)
    warn_generation_config(model)
    return quantise(model.eval().requires_grad_(False), source.quantise)


def load_shape(source: ModelSource) -> PreTrainedModel:
    """A model without its weights (on the device `meta`), for those who only ask what it is like."""
    config = load_config(source)
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, source.dtype))
    with contextlib.suppress(OSError):  # few models have no such file, and the configuration says the same then
        model.generation_config = GenerationConfig.from_pretrained(source.model, revision=source.revision)
    return model.eval().requires_grad_(False)


def load_tokenizer(source: PairSource) -> PreTrainedTokenizerBase:
    """The pair's tokenizer: the one it names, else the target's."""
    where = source.target if source.tokenizer is None else ModelSource(source.tokenizer)
    tokenizer = attempt(where, lambda: AutoTokenizer.from_pretrained(where.model, **where.place))
    if tokenizer.pad_token_id is None:  # any id will do: padding is masked
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "left"
    return tokenizer


def check_room(source: PairSource) -> None:
    """Refuse models that do not fit into memory together, before the first of them is loaded.

    Raises:
        UserError: their weights need more than is free.
    """
    for device in {model.place_of_weights for model in source.models if not model.device_map}:
        check_memory({role: size_on(device, model) for role, model in source.roles.items()}, device)


def size_on(device: str, source: ModelSource) -> Size | None:
    """What a model needs on a device; None where nothing is known, or it lies elsewhere."""
    if source.device_map or source.place_of_weights != device or not source.is_folder:
        return None
    return weight_size(source.model, getattr(torch, source.dtype), source.gguf_file)


def attempt(source: ModelSource, read: Callable[[], T]) -> T:
    """Call `read`.

    Raises:
        UserError: the folder is missing or damaged, or the hub has no such model or cannot be reached.
    """
    if source.is_folder and not Path(source.model).is_dir():
        raise UserError(
            f"The model folder {source.model} is missing. Run `dvc repro pair` if it is the embedded pair's, "
            "else correct the path in models/pairs/."
        )
    if source.is_folder:
        check_gguf(source.model, source.place)
    try:
        return read()
    except Exception as error:  # damaged files, a hub out of reach and unknown architectures fail in many ways
        if is_out_of_memory(error):
            raise
        raise UserError(f"{source.model} could not be loaded ({first_line(error)}). {remedy(source, error)}") from error


def remedy(source: ModelSource, error: Exception) -> str:
    """What a person can do about a model that does not load."""
    if source.is_folder:
        return "Its files are damaged or incomplete; restore the folder or write it again."
    if isinstance(error, ImportError):
        return "Install what the message names, or leave `device_map` out of the pair's file."
    return hub_remedy(source.model, error)


def check_vocabularies(source: PairSource, tokenizer: PreTrainedTokenizerBase, sizes: Mapping[str, int]) -> None:
    """Both models have to mean the same token by every id of the tokenizer. Padding behind its last id may differ.

    Args:
        source: names the draft, whose own tokenizer is compared where it has one.
        tokenizer: the pair's.
        sizes: rows of the input embedding of `target` and `draft`.

    Raises:
        UserError: an id has two meanings, a model lacks ids, or the draft's tokenizer cannot be read.
    """
    for role, size in sizes.items():
        if size < (needed := num_ids(tokenizer)):
            raise UserError(
                f"The {role} knows {size} tokens, but the tokenizer has {needed}. Choose models of one family: "
                "speculative decoding needs one vocabulary."
            )
    draft = source.draft
    own = None if draft is None else load_draft_tokenizer(draft.model, **draft.place)
    if own is not None:
        check_same_tokenizer(tokenizer, own)


class NamesPair(Protocol):
    """What is needed of the parameters."""

    @property
    def pair(self) -> str:
        """File name in models/pairs/ without its ending."""


@dataclass(frozen=True)
class Pair:
    """A target, a draft model or another drafter, and the tokenizer, ready for inference."""

    target: PreTrainedModel
    draft: PreTrainedModel | None
    """None where `drafter` proposes without a model."""
    tokenizer: PreTrainedTokenizerBase
    name: str
    files: tuple[Path, ...] = field(default=())
    """Local files and folders that the pair was read from; fingerprints take them in."""
    drafter: str = MODEL
    """Id of the drafter that stands for the pair wherever a method says "model"."""
    names: Mapping[str, str] = field(default_factory=dict)
    """What gates call `target`, `draft` and `tokenizer` where their folders' names say too little."""

    @property
    def models(self) -> list[PreTrainedModel]:
        """The target and, where there is one, the draft model."""
        return [self.target] if self.draft is None else [self.target, self.draft]

    @property
    def draft_model(self) -> PreTrainedModel:
        """The draft model, for what cannot do without one.

        Raises:
            UserError: the pair has none.
        """
        if self.draft is None:
            raise UserError(
                f"The pair '{self.name}' drafts with '{self.drafter}' and has no draft model, which this needs. "
                "Choose a pair with a draft model."
            )
        return self.draft


def load_pair(params: NamesPair, folder: Path = PAIRS, weights: bool = True) -> Pair:
    """Load both models and the tokenizer, frozen and in evaluation mode; without `weights` only their shapes.

    Raises:
        UserError: unknown pair, a model that cannot be read or reached, vocabularies that differ, or too little memory.
    """
    source = read_pair(params.pair, folder)
    tokenizer = load_tokenizer(source)
    if weights:
        check_room(source)
    load = load_model if weights else load_shape
    target, draft = load(source.target), None if source.draft is None else load(source.draft)
    models = {"target": target} if draft is None else {"target": target, "draft": draft}
    sizes = {role: num_embeddings(model) for role, model in models.items()}
    check_vocabularies(source, tokenizer, sizes)
    if draft is not None:
        check_smaller(target, draft)
    files = pair_files(params.pair, folder)
    return Pair(target, draft, tokenizer, params.pair, files, source.drafter, source.names)


def pair_files(name: str, folder: Path = PAIRS) -> tuple[Path, ...]:
    """The local files and folders that a pair is read from."""
    source = read_pair(name, folder)
    local = [Path(one.model) for one in source.models if one.is_folder]
    return (folder / f"{name}.yaml", *local)


def num_embeddings(model: PreTrainedModel) -> int:
    """Ids that a model can read."""
    return int(model.get_input_embeddings().weight.shape[0])


def check_pair(name: str, folder: Path = PAIRS) -> dict[str, Any]:
    """Check configurations and vocabularies without loading weights; returns what identifies the pair.

    Raises:
        UserError: as `load_pair`.
    """
    source = read_pair(name, folder)
    tokenizer = load_tokenizer(source)
    identities = {role: identity(model) for role, model in source.roles.items()}
    sizes = {role: identity["vocabulary"] for role, identity in identities.items()}
    check_vocabularies(source, tokenizer, sizes)
    return {"pair": name, "tokens": len(tokenizer), "draft": None, "drafter": source.drafter, **identities}


def identity(source: ModelSource) -> dict[str, Any]:
    """Name and shape of a model, from its configuration."""
    config = load_config(source).get_text_config()
    return {
        "model": source.model,
        "revision": source.revision,
        "architecture": config.model_type,
        "hidden_size": config.hidden_size,
        "layers": config.num_hidden_layers,
        "vocabulary": config.vocab_size,
    }
