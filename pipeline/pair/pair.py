"""Load a target and what drafts for it as models/pairs/<pair>.yaml names them."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from gistgate.core.architecture import num_ids
from gistgate.core.utils import UserError
from gistgate.models import loading, places, tokenizers
from gistgate.models.lighter import Subset
from gistgate.models.packed import check_kind, quantise
from pipeline.methods import MODEL, Count, Natural, Positive
from pipeline.params import block, build, nearest
from pipeline.paths import DRAFT, PAIRS, VOCABULARY, read_yaml


@block
class ModelSource:
    """Where one model comes from."""

    model: str  # hub id or folder
    name: str | None = None
    """What gates call the model where `model` is a folder; None: the folder's own name."""
    revision: str | None = None  # branch, tag or commit on the hub; None takes the newest
    gguf_file: str | None = None
    """File in the folder or repository, unpacked to `dtype`; None reads safetensors."""
    dtype: str = "bfloat16"  # type of the weights in memory, a name in torch
    device_map: str | None = None
    """As of from_pretrained, such as `auto`; None puts the whole model on `device`."""
    device: str | None = None  # without a device_map; None takes the GPU where there is one
    quantise: str = "none"
    """How weights are kept on a processor, one of `gistgate.models.packed.KINDS`."""

    def __post_init__(self) -> None:
        if self.model.startswith("~"):
            object.__setattr__(self, "model", str(Path(self.model).expanduser()))
        check_kind(self.quantise)
        if not isinstance(getattr(torch, self.dtype, None), torch.dtype):
            raise UserError(
                f"The pair names the dtype '{self.dtype}'. Write float32, bfloat16 or float16."
            )

    @property
    def is_folder(self) -> bool:
        """A folder here rather than a hub id, which is `owner/name` or `name`."""
        return Path(self.model).is_dir() or places.is_path(self.model)

    @property
    def place(self) -> dict[str, Any]:
        """Arguments that every from_pretrained gets; a missing folder, which the hub would be asked
        for, is refused.
        """
        if self.is_folder and not Path(self.model).is_dir():
            raise UserError(
                f"The model folder {self.model} is missing. Run `dvc repro pair`, or correct its"
                " path."
            )
        gguf = {"gguf_file": self.gguf_file} if self.gguf_file else {}
        return {"revision": self.revision or "main", "trust_remote_code": False, **gguf}


@block
class DraftSource(ModelSource):
    """Where the draft model comes from. With `of` the stage `draft` makes it: it cuts a model and
    trains the rest on the target's answers.
    """

    model: str = ""
    of: Literal["draft", "target"] | None = None
    """What is cut: the model that is named here, or the target; None: the model drafts as it is."""
    layers: Natural = 0  # layers that stay
    vocabulary: Count | None = None
    """Tokens that it may propose, the most frequent ones of the answers; None: all."""
    epochs: Count = 5  # passes over the answers
    batch_size: Count = 8  # answers in an optimiser step
    lr: Positive = 3e-4  # peak learning rate of AdamW

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.model) == (self.of == "target"):
            raise UserError(
                "The pair's draft needs either a `model`, or `of: target`, which cuts the target."
            )
        is_trained = self.of is not None
        if bool(self.layers) != is_trained or (self.vocabulary and not is_trained):
            raise UserError(
                "A draft that is trained needs both `of` (draft or target: what is cut) and"
                " `layers` (how many stay). Write both, or none and no `vocabulary`."
            )

    @property
    def trained(self) -> ModelSource:
        """The draft that the stage `draft` writes."""
        return ModelSource(
            str(DRAFT),
            dtype=self.dtype,
            device_map=self.device_map,
            device=self.device,
            quantise=self.quantise,
        )


@block
class PairSource:
    """The content of a pair's file."""

    target: ModelSource  # the model whose answers count
    draft: DraftSource | None = None
    """The model that proposes; None where `drafter` proposes without a model."""
    drafter: str = MODEL
    """MODEL for the draft model, or one of loading.RETRIEVAL, which copies from the text."""
    training: dict[str, Any] | None = None
    """For pairs that are trained here: what replaces keys of `pair_training`."""

    def __post_init__(self) -> None:
        drafters = (MODEL, *loading.RETRIEVAL)
        if self.drafter not in drafters:
            raise UserError(
                f"The pair names the drafter '{self.drafter}'. {nearest(self.drafter, drafters)}"
            )
        if (self.draft is None) == (self.drafter == MODEL):
            raise UserError(
                "The pair needs one source of drafts: `draft:`, `drafter: suffix` or `drafter:"
                " lookup`."
            )

    @property
    def names(self) -> dict[str, str]:
        """The names that the file gives to `target`, `draft` and `tokenizer`."""
        names = {role: source.name for role, source in self.roles.items()}
        names["tokenizer"] = self.target.name
        return {role: name for role, name in names.items() if name}

    @property
    def roles(self) -> dict[str, ModelSource]:
        """The models that decode by "target" and, where there is one, "draft"."""
        if self.draft is None:
            return {"target": self.target}
        return {"target": self.target, "draft": self.draft.trained if self.draft.of else self.draft}

    @property
    def trains_draft(self) -> bool:
        """Whether the stage `draft` makes the draft model."""
        return self.draft is not None and self.draft.of is not None

    @property
    def vocabulary(self) -> Path | None:
        """The file of the tokens that a trained draft may propose; None where it may all."""
        return VOCABULARY if self.draft is not None and self.draft.vocabulary else None

    @property
    def given(self) -> "PairSource":
        """The pair before its draft is trained; where that is cut from the target there is none."""
        if self.draft is None or self.draft.of is None:
            return self
        if self.draft.of == "target":
            return replace(self, draft=None, drafter=loading.RETRIEVAL[0])
        return replace(self, draft=replace(self.draft, of=None, layers=0, vocabulary=None))

    @property
    def origin(self) -> ModelSource:
        """The model that a trained draft is cut from, with its weights as they are."""
        source = self.given.draft or self.target
        return replace(source, quantise="none")


def read_pair(name: str) -> PairSource:
    """The file of a pair; for a pair that does not exist the nearest name is offered."""
    path = PAIRS / f"{name}.yaml"
    if not path.is_file():
        names = [file.stem for file in PAIRS.glob("*.yaml")]
        raise UserError(f"There is no pair '{name}' in {PAIRS}. {nearest(name, names)}")
    return build(PairSource, read_yaml(path), file=str(path))


def pair_files(name: str) -> tuple[Path, ...]:
    """The local files and folders that a pair is read from."""
    sources = read_pair(name).roles.values()
    folders = [Path(source.model) for source in sources if source.is_folder]
    return (PAIRS / f"{name}.yaml", *folders)


def load_config(source: ModelSource) -> Any:
    """The configuration of a model."""
    place = source.place
    return places.or_refuse(
        "model", source.model, lambda: AutoConfig.from_pretrained(source.model, **place), **place
    )


def load_model(source: ModelSource) -> PreTrainedModel:
    """A model in its dtype on its device, without gradients, and quantised where the pair says
    so.
    """
    options = {"dtype": getattr(torch, source.dtype), **source.place}
    device: str | None = source.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if source.device_map:
        device = None
        options["device_map"] = source.device_map
    model = loading.load_model("model", source.model, device, source.quantise, **options)
    loading.warn_slow(model)
    loading.warn_generation_config(model)
    return model.requires_grad_(False)


def load_draft(source: DraftSource, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """The draft model of a pair; a trained one has the part of the vocabulary that it learned."""
    if source.of is None:
        return load_model(source)
    if not (DRAFT / "config.json").is_file():
        raise UserError("The pair's draft is not trained yet. Run `dvc repro draft`.")
    model = load_model(replace(source.trained, quantise="none"))
    if source.vocabulary:
        Subset.load(VOCABULARY).apply(model, tokenizer)
    return quantise(model, source.quantise)


def load_shape(source: ModelSource) -> PreTrainedModel:
    """A model without its weights (on the device `meta`), for those who only ask what it is
    like.
    """
    config = load_config(source)
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            config,
            dtype=getattr(torch, source.dtype),
        )
    with suppress(OSError):  # without such a file the configuration says the same
        model.generation_config = GenerationConfig.from_pretrained(
            source.model,
            revision=source.revision,
        )
    return model.eval().requires_grad_(False)


def load_tokenizer(source: PairSource) -> PreTrainedTokenizerBase:
    """The pair's tokenizer, which is the target's."""
    tokenizer = tokenizers.load_tokenizer(source.target.model, **source.target.place)
    if tokenizer.pad_token_id is None:  # any id will do: padding is masked
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "left"
    return tokenizer


def check_vocabularies(
    source: PairSource,
    tokenizer: PreTrainedTokenizerBase,
    sizes: Mapping[str, int],
) -> None:
    """Both models have to mean the same token by every id; `sizes` are the rows of their input
    embeddings by role.
    """
    num = num_ids(tokenizer)
    for role, size in sizes.items():
        if size < num:
            raise UserError(
                f"The {role} knows {size} tokens, the tokenizer {num}. Choose models of one family."
            )
    draft = source.draft
    if draft:
        place = (draft.model, draft.revision, draft.gguf_file)
        tokenizers.check_same_tokenizer(tokenizer, tokenizers.readable_tokenizer("draft", *place))


@dataclass(frozen=True)
class Pair:
    """A target, a draft model or another drafter, and the tokenizer, ready for inference."""

    target: PreTrainedModel
    draft: PreTrainedModel | None  # None where `drafter` proposes without a model
    tokenizer: PreTrainedTokenizerBase
    name: str
    files: tuple[Path, ...] = ()
    """Local files and folders that it was read from; fingerprints take them in."""
    drafter: str = MODEL
    """Id of the drafter that stands for the pair wherever a method says "model"."""
    names: Mapping[str, str] = field(default_factory=dict)
    """What gates call `target`, `draft` and `tokenizer`."""
    server: Any = None
    """A `pipeline.served.VllmServer` that makes answers; None: this library's decoder does."""

    @property
    def draft_model(self) -> PreTrainedModel:
        """The draft model, for what cannot do without one."""
        if self.draft is None:
            raise UserError(
                f"The pair '{self.name}' has no draft model, which this needs. Choose another pair."
            )
        return self.draft


def load_pair(params: Any, weights: bool = True, trained: bool = True) -> Pair:
    """Load both models of `params.pair` and the tokenizer, frozen and in evaluation mode; without
    `weights` only their shapes, and without `trained` the draft that a trained one is cut from.
    Unknown pairs, models that cannot be read or reached and vocabularies that differ are refused.
    """
    source = read_pair(params.pair)
    if not trained:
        source = source.given
    tokenizer = load_tokenizer(source)
    if weights:
        models = {"target": load_model(source.target)}
        if source.draft is not None:
            models["draft"] = load_draft(source.draft, tokenizer)
    else:
        models = {role: load_shape(model) for role, model in source.roles.items()}
    sizes = {role: len(model.get_input_embeddings().weight) for role, model in models.items()}
    check_vocabularies(source, tokenizer, sizes)
    target = models["target"]
    draft = models.get("draft")
    if draft is not None:
        loading.check_smaller(target, draft)
    files = pair_files(params.pair)
    return Pair(target, draft, tokenizer, params.pair, files, source.drafter, source.names)


def check_pair(name: str) -> dict[str, Any]:
    """Check configurations and vocabularies without loading weights; returns what identifies the
    pair.
    """
    source = read_pair(name)
    tokenizer = load_tokenizer(source)
    if source.trains_draft:
        check_cut(source)
    report = {"pair": name, "tokens": len(tokenizer), "draft": None, "drafter": source.drafter}
    sizes = {}
    for role, model in source.given.roles.items():
        config = load_config(model).get_text_config()
        sizes[role] = config.vocab_size
        report[role] = {
            "model": model.model,
            "revision": model.revision,
            "architecture": config.model_type,
            "hidden_size": config.hidden_size,
            "layers": config.num_hidden_layers,
            "vocabulary": config.vocab_size,
        }
    check_vocabularies(source.given, tokenizer, sizes)
    return report


def check_cut(source: PairSource) -> None:
    """Refuse (UserError) a draft of more layers or tokens than what it is cut from."""
    config = load_config(source.origin).get_text_config()
    limits = {"layers": config.num_hidden_layers - 1, "vocabulary": config.vocab_size}
    for key, limit in limits.items():
        number = getattr(source.draft, key)
        if number is not None and number > limit:
            raise UserError(
                f"The draft of the pair is to have {number} `{key}`, and the model that it is cut"
                f" from allows {limit} at most. Lower the number in {PAIRS}."
            )
