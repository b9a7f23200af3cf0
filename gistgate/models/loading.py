"""Models and tokenizers from names on a command line, and the settings that are written beside them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary, WeakSet

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import cached_file, has_file

from gistgate.core.files import read_json
from gistgate.core.request import eos_ids
from gistgate.core.utils import UserError, first_line, is_out_of_memory
from gistgate.models.lighter import Subset, check_kind, quantise

# ---- Whether memory suffices for models, said before they are loaded.


GROUP = Path("/sys/fs/cgroup")
"""Where Linux says how much memory a container may take."""


class Size(NamedTuple):
    """Bytes of a model's weights."""

    loaded: int
    """As long as the model is there."""
    peak: int
    """While it is loaded; a GGUF file is unpacked beside the model."""


def check_memory(models: Mapping[str, Size | None], device: Any = "cpu") -> None:
    """Refuse models that memory cannot hold when they are loaded one after another, in this order.

    Args:
        models: weights by the name of the model; None where nothing is known, which refuses nothing.
        device: where the weights go.

    Raises:
        UserError: they need more than is free.
    """
    known = {name: size for name, size in models.items() if size}
    needed, free = most_at_once(known.values()), free_memory(torch.device(device))
    if free is None or needed <= free:
        return
    parts = [f"{name} {size.loaded / 1e9:.1f} GB" for name, size in known.items()]
    passing = needed - sum(size.loaded for size in known.values())
    if passing:
        parts.append(f"{passing / 1e9:.1f} GB more while a GGUF file is unpacked")
    raise UserError(
        f"The weights need {needed / 1e9:.1f} GB ({', '.join(parts)}), and {free / 1e9:.1f} GB are free on {device}. "
        "Close other programs, choose a smaller model or a dtype of half the size, or use a machine with more memory."
    )


def most_at_once(sizes: Iterable[Size]) -> int:
    """The most bytes that exist at a time while models are loaded one after another."""
    loaded = most = 0
    for size in sizes:
        most = max(most, loaded + size.peak)
        loaded += size.loaded
    return most


def free_memory(device: torch.device) -> int | None:
    """Bytes that are free on a device; None where the system does not say."""
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # PyTorch's own, free again
        return int(torch.cuda.mem_get_info(device)[0]) + int(kept)
    lines = read(Path("/proc/meminfo")).splitlines()
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    limit, used = (read(GROUP / file).strip() for file in ("memory.max", "memory.current"))
    if limit.isdecimal() and used.isdecimal():
        found.append(int(limit) - max(0, int(used) - reclaimable()))
    return min(found, default=None)


def reclaimable() -> int:
    """Bytes of files that the container has read and that the kernel gives back as soon as memory is wanted."""
    entries = (line.split() for line in read(GROUP / "memory.stat").splitlines())
    return next((int(entry[1]) for entry in entries if entry[0] == "inactive_file"), 0)


def read(file: Path) -> str:
    """The text of a file of the system; empty where there is none."""
    try:
        return file.read_text()
    except OSError:
        return ""


# ---- Where the weights of a model lie, how large they are, and how they are read: whole and finite.


GGUF = ".gguf"


def placed(name: str, gguf: str | None = None) -> tuple[str, dict[str, str]]:
    """What `from_pretrained` is called with: the folder or hub id, and the GGUF file in it if there is one.

    A name that is itself a GGUF file stands for its folder and that file.
    """
    path = Path(name).expanduser()
    if gguf is None and path.suffix == GGUF and path.is_file():
        return str(path.parent), {"gguf_file": path.name}
    return name, {} if gguf is None else {"gguf_file": gguf}


def check_gguf(name: str, place: Mapping[str, str]) -> None:
    """Refuse a GGUF file that cannot be read, before transformers tries.

    Raises:
        UserError: the folder lacks the file, or the package that reads it is not installed.
    """
    file = place.get("gguf_file")
    if file is None:
        return
    if Path(name).is_dir() and not (Path(name) / file).is_file():
        known = ", ".join(sorted(path.name for path in Path(name).glob(f"*{GGUF}"))) or "none"
        raise UserError(f"The folder {name} has no file {file} (GGUF files there: {known}). Correct the name.")

    check_reader()


def weight_size(name: str, dtype: Any, gguf: str | None = None) -> Size | None:
    """What the weights of a model in a folder need, from the headers of its files; None where nothing is known.

    Args:
        name: folder; of a hub id nothing is known.
        dtype: type in memory, or "auto" for that of the files.
        gguf: GGUF file in the folder; it is unpacked to float32 before it gets its dtype.

    Raises:
        UserError: the GGUF file is damaged.
    """
    folder = Path(name)
    if gguf is not None:
        return gguf_size(folder / gguf, dtype) if (folder / gguf).is_file() else None
    try:
        found = sum(file_bytes(file, dtype) for file in weight_files(folder))
    except (SafetensorError, OSError, UserError):  # loading names the damaged file
        return None
    return Size(found, found) if found else None


def weight_files(folder: Path) -> list[Path]:
    """The files that transformers reads; others, such as a consolidated copy, may lie beside them.

    Raises:
        UserError: the index of several files is damaged.
    """
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return [single]
    if not index.is_file():
        return sorted(folder.glob("*.safetensors"))
    content = read_json(index)
    if not isinstance(content, dict) or not isinstance(content.get("weight_map"), dict):
        raise UserError(f"{index} has no object 'weight_map'. Restore it or write it again.")
    return [folder / name for name in sorted({str(name) for name in content["weight_map"].values()})]


def file_bytes(file: Path, dtype: Any) -> int:
    """Bytes of a safetensors file's tensors in `dtype`."""
    if dtype == "auto":
        return file.stat().st_size
    with safe_open(file, framework="pt") as opened:
        numbers = (math.prod(opened.get_slice(name).get_shape()) for name in opened.keys())  # noqa: SIM118
        return int(sum(numbers) * dtype.itemsize)


def whole_model(name: str, **options: Any) -> PreTrainedModel:
    """A model from safetensors files that hold all of its weights, all finite; pickled weights are never read.

    Code from elsewhere runs only where `options` say `trust_remote_code=True`.

    transformers fills weights that a file lacks with random numbers, and says so in a warning only.

    Raises:
        ValueError: weights are missing or not finite; transformers raises further errors.
    """
    options = {"trust_remote_code": False, **options, "use_safetensors": None if options.get("gguf_file") else True}
    model, report = AutoModelForCausalLM.from_pretrained(name, **options, output_loading_info=True)
    found: PreTrainedModel = model
    if file := options.get("gguf_file"):  # the configuration names the folder alone
        found.gguf_file = str(cached_file(name, file, revision=options.get("revision"), local_files_only=True))
    if lacking := sorted([*report["missing_keys"], *report["mismatched_keys"]], key=str):
        raise ValueError(f"its files lack {len(lacking)} weights, such as {lacking[0]}")
    for weight, parameter in found.named_parameters():
        if parameter.device.type != "meta" and not is_finite(parameter):
            raise ValueError(f"the weight {weight} is not finite")
    return found


def is_finite(parameter: Tensor) -> bool:
    """Whether all values are finite; floats of one byte have no test of their own."""
    is_narrow = parameter.is_floating_point() and parameter.element_size() == 1
    return bool((parameter.to(torch.bfloat16) if is_narrow else parameter).isfinite().all())


# ---- The tokenizers of a target and its draft: whether the same ids mean the same, and whether a template is used.


FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")
"""Files of which a repository with a tokenizer has at least one."""
SPARE = 64
"""Tokens that only one of two tokenizers may know, or a hundredth of all, if that is more: families add special tokens
later."""
COMPARED: WeakKeyDictionary[PreTrainedModel, WeakSet[Any]] = WeakKeyDictionary()
"""The tokenizers, or targets in their place, that a draft model was compared with: a server asks with every request."""


def check_draft_tokenizer(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    tokenizer: Any = None,
    read: Callable[[], PreTrainedTokenizerBase | None] | None = None,
) -> None:
    """Refuse a draft model whose token ids mean something else than the target's; each pair is compared once.

    A pair is trusted where the tokenizer of one of the two cannot be read. Loaded models do not say their revision on
    the hub, so that the tokenizer of the default one is read.

    Args:
        target: the loaded target.
        draft: the loaded draft model.
        tokenizer: the target's; None: the one of the folder or repository that the target was loaded from.
        read: loads the draft's own one; None: that of the folder or repository that the draft was loaded from.

    Raises:
        UserError: the tokenizers differ, or `read` raises it.
    """
    partner = target if tokenizer is None else tokenizer
    if draft is target or was_compared(draft, partner):
        return
    ours = tokenizer_of("target", target) if tokenizer is None else tokenizer
    if ours is not None:
        theirs = tokenizer_of("draft", draft) if read is None else read()
        if theirs is not None:
            check_same_tokenizer(ours, theirs, "" if read is not None else origin_of(draft))
    remember_compared(draft, partner)


def was_compared(draft: PreTrainedModel, partner: Any) -> bool:
    """Whether this pair was compared before; never for what cannot be a weak key, which is compared each time."""
    try:
        return partner in COMPARED.get(draft, ())
    except TypeError:
        return False


def remember_compared(draft: PreTrainedModel, partner: Any) -> None:
    """Compare this pair no more."""
    with suppress(TypeError):  # no weak key
        COMPARED.setdefault(draft, WeakSet()).add(partner)


def origin_of(draft: PreTrainedModel) -> str:
    """Where the tokenizer of a loaded draft was looked for, and what helps where the model is from elsewhere."""
    return (
        f" The draft's tokenizer is that of '{draft.config.name_or_path}', which its configuration names; if the model "
        "was made otherwise, set `draft.config.name_or_path = ''`."
    )


def tokenizer_of(role: str, model: PreTrainedModel) -> PreTrainedTokenizerBase | None:
    """The tokenizer of what a loaded model came from; None where that is not known or has none.

    A name that is no folder is a hub id only where the cache holds its configuration: the folder of a model may have
    moved since, and the hub is not asked for such a name.
    """
    name = str(getattr(model, "gguf_file", None) or model.config.name_or_path)
    if not name or not (Path(name).exists() or is_cached(name, "config.json", None)):
        return None
    return readable_tokenizer(role, name)


def readable_tokenizer(role: str, name: str, revision: str | None = None) -> PreTrainedTokenizerBase | None:
    """The tokenizer of a model that is loaded already, if it can be read; damaged files are a warning.

    Such a model may have a tokenizer that only code from elsewhere reads, so nobody is asked to restore its files. The
    hub is asked where the cache has no tokenizer, at first with one request: transformers repeats each of its own for
    half a minute where there is no network.

    Args:
        role: "target" or "draft", for the warning.
        name: hub id, folder or GGUF file.
        revision: revision on the hub.
    """
    name, place = placed(name)
    is_here = Path(name).is_dir() or bool(found_files(name, revision))
    if not is_here and not is_on_hub(name, revision):
        return None
    try:
        return own_tokenizer(role, name, revision=revision, local_files_only=is_here, **place)
    except UserError as error:
        warnings.warn(str(error), stacklevel=2)
        return None


def is_on_hub(name: str, revision: str | None) -> bool:
    """Whether the hub can be reached and has a tokenizer of this name."""
    try:
        return bool(has_file(name, "tokenizer_config.json", revision=revision))
    except Exception:  # no such repository, no access, a proxy without one: nothing can be read
        return False


def load_draft_tokenizer(name: str, **place: Any) -> PreTrainedTokenizerBase | None:
    """The tokenizer of a draft that a user names, as `own_tokenizer` reads it."""
    return own_tokenizer("draft", name, **place)


def own_tokenizer(role: str, name: str, **place: Any) -> PreTrainedTokenizerBase | None:
    """A model's own tokenizer, to compare; None where its folder or repository has none.

    Args:
        role: "target" or "draft", for the message.
        name: hub id or folder.
        place: what `from_pretrained` gets, such as `revision` and `gguf_file`.

    Raises:
        UserError: there is one, and it cannot be read.
    """
    if Path(name).is_dir() and not found_files(name, **place):  # transformers would make one up
        return None
    try:
        return AutoTokenizer.from_pretrained(name, **{**place, "trust_remote_code": False})
    except Exception as error:  # damaged files fail in many ways
        found = found_files(name, **place)
        if is_out_of_memory(error):
            raise
        if not found:
            return None
        other = "draft" if role == "target" else "target"
        raise UserError(
            f"The tokenizer of the {role} '{name}' could not be read from {', '.join(found)} ({first_line(error)}), so "
            f"that it cannot be compared with the {other}'s. Restore its files."
        ) from error


def found_files(name: str, revision: str | None = None, gguf_file: str | None = None, **_: Any) -> list[str]:
    """Names of the files with a tokenizer, in a folder or in what is here of a repository on the hub."""
    if gguf_file is not None:
        return [gguf_file]
    if Path(name).is_dir():
        return sorted(path.name for path in Path(name).glob("tokenizer*"))
    return [file for file in FILES if is_cached(name, file, revision)]


def is_cached(name: str, file: str, revision: str | None) -> bool:
    """Whether a file of a repository on the hub is here."""
    try:
        return cached_file(name, file, revision=revision, local_files_only=True) is not None
    except OSError:
        return False


def check_same_tokenizer(target: Any, draft: Any, origin: str = "") -> None:
    """Refuse a draft model whose token ids mean something else than the target's.

    A few tokens that only one of the two knows are no contradiction: a target often has more special tokens. `origin`
    ends the message.

    Raises:
        UserError: names the first id that stands for two different tokens, or the numbers of tokens.
    """
    ours, theirs = ({index: token for token, index in one.get_vocab().items()} for one in (target, draft))
    other = next((index for index in sorted(ours.keys() & theirs.keys()) if ours[index] != theirs[index]), None)
    if other is not None:
        refuse(f"id {other} is {ours[other]!r} for the target and {theirs[other]!r} for the draft", origin)
    if len(ours.keys() ^ theirs.keys()) > max(SPARE, len(ours) // 100):
        refuse(f"the target's has {len(ours)} tokens and the draft's {len(theirs)}", origin)


def refuse(difference: str, origin: str) -> None:
    """Raise UserError for two tokenizers that differ."""
    raise UserError(
        f"The draft model has another tokenizer: {difference}. Use a draft model with the target's tokenizer, or a "
        f"drafter without a model such as 'lookup'.{origin}"
    )


def warn_untemplated(tokenizer: PreTrainedTokenizerBase, remedy: str) -> None:
    """Warn that prompts are not wrapped in the tokenizer's chat template, if it has one; `remedy` says what helps."""
    if tokenizer.chat_template is not None:
        warnings.warn(
            "The tokenizer has a chat template, and prompts are not wrapped in it. Instruction-tuned models answer "
            f"worse without it; {remedy}.",
            stacklevel=3,
        )


# ---- What is wrong with a model that a user names, and what helps.


RETRIEVAL = ("suffix", "lookup")
"""Drafters that a pair may have in place of a draft model: they copy from the text."""


class Sized(Protocol):
    """A model that knows its size."""

    def parameters(self) -> Iterator[Tensor]:
        """Its weights."""


def check_smaller(target: Sized, draft: Sized) -> None:
    """Refuse a draft whose weights take more memory than its target's: a step of it could only slow decoding down.

    Raises:
        UserError: the draft is larger.
    """
    sizes = [sum(one.numel() * one.element_size() for one in model.parameters()) for model in (target, draft)]
    if sizes[1] > sizes[0]:
        raise UserError(
            f"The draft has {sizes[1]:,} bytes of weights and the target only {sizes[0]:,}: drafting would cost more "
            "than it saves. Swap the two, or choose a smaller draft."
        )


def hub_remedy(name: str, error: BaseException) -> str:
    """A sentence for a hub id whose loading raised `error`; transformers hides the hub's own error behind its own."""
    kinds = {type(one).__name__ for one in chain(error)}
    text = " ".join(str(one) for one in chain(error)).lower()
    if "GatedRepoError" in kinds or "gated repo" in text:
        return (
            f"Its licence has to be accepted: open https://huggingface.co/{name}, accept it there, and log in with "
            "`hf auth login`."
        )
    if "RevisionNotFoundError" in kinds:
        return "Check the revision: a branch, a tag or a commit of that model."
    if "RepositoryNotFoundError" in kinds:
        return "Check the spelling; a private model needs `hf auth login`."
    if kinds & {"OfflineModeIsEnabled", "LocalEntryNotFoundError"} or "connect" in text:
        return (
            "It is not in the local cache, and the hub was not asked or could not be reached. Check the name and the "
            "connection, set HF_HUB_OFFLINE=0 to let it be fetched, or name a local folder."
        )
    if "use_safetensors" in text or "no file named model.safetensors" in text:
        return (
            "Only weights in safetensors files are read, because pickled ones may run code. Convert them once where "
            "you trust them: load the model with transformers, and call save_pretrained on it."
        )
    return "Check the name or the folder."


def chain(error: BaseException) -> Iterator[BaseException]:
    """An exception and those that led to it."""
    one: BaseException | None = error
    while one is not None:
        yield one
        one = one.__cause__ or one.__context__


# ---- What a model's own `generation_config.json` asks of decoding and this decoder does not do.


NEUTRAL: dict[str, Any] = {
    "num_beams": 1,
    "guidance_scale": 1.0,
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "min_length": 0,
    "min_new_tokens": 0,
    "suppress_tokens": [],
    "begin_suppress_tokens": [],
    "bad_words_ids": [],
    "sequence_bias": {},
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "exponential_decay_length_penalty": None,
}
"""Entries that change which token is the most probable one, with the value at which they change nothing."""


def asked_by_model(model: PreTrainedModel) -> dict[str, Any]:
    """The entries of the model's own configuration that would change its greedy text, with their values."""
    found = {name: getattr(model.generation_config, name, None) for name in NEUTRAL}
    return {name: value for name, value in found.items() if value is not None and value != NEUTRAL[name]}


def warn_generation_config(model: PreTrainedModel) -> None:
    """Say which of them this decoder leaves out."""
    if found := asked_by_model(model):
        named = ", ".join(f"{name}={value}" for name, value in found.items())
        warnings.warn(
            f"The generation_config.json of {model.config.name_or_path or 'a model'} asks for {named}, which GistGate "
            "does not apply: it writes the most probable token, or samples, without it. Programs that apply it write "
            "other texts.",
            stacklevel=3,
        )


DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Target:
    """A loaded target with its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase

    @property
    def eos_ids(self) -> list[int]:
        """Every id that ends an answer."""
        return eos_ids(self.model, self.tokenizer)

    def encode(self, prompt: str, chat: bool = False, system: str | None = None) -> list[int]:
        """Token ids of a prompt, in the chat template where `chat` says so.

        Raises:
            UserError: the tokenizer has no chat template, or a system text has no chat to stand in.
        """
        if not chat:
            if system:
                raise UserError("A system text stands in a chat. Add --chat, or leave --system away.")
            warn_untemplated(self.tokenizer, "--chat uses it")
            return list(self.tokenizer(prompt).input_ids)
        if self.tokenizer.chat_template is None:
            raise UserError("This tokenizer has no chat template. Leave --chat away.")
        return list(self.tokenizer(self.rendered(prompt, system), add_special_tokens=False).input_ids)

    def rendered(self, prompt: str, system: str | None = None) -> str:
        """A prompt as the chat template writes it out, up to where the answer begins.

        Raises:
            UserError: the template refuses it, as some do with every system text.
        """
        messages = [*([{"role": "system", "content": system}] if system else []), {"role": "user", "content": prompt}]
        try:
            text = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        except Exception as error:  # a template is a program of the model's makers, and may refuse in its own way
            remedy = "Leave --system away." if system else "Mend the template, or leave --chat away."
            raise UserError(f"The tokenizer's chat template fails ({first_line(error)}). {remedy}") from error
        return str(text)


def load_target(name: str, dtype: str = "auto", device: str | None = None, gguf: str | None = None) -> Target:
    """A model by hub id or folder, on the GPU where there is one; `gguf` names a GGUF file there.

    Raises:
        UserError: there is no such dtype, or the model cannot be loaded.
    """
    if dtype not in DTYPES:
        raise UserError(f"There is no dtype '{dtype}'. Use one of: {', '.join(DTYPES)}.")
    wanted = dtype if dtype == "auto" else getattr(torch, dtype)
    name, place = placed(name, gguf)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    model = load_model("model", name, device, dtype=wanted, **place)
    warn_generation_config(model)
    try:
        return Target(model, AutoTokenizer.from_pretrained(name, trust_remote_code=False, **place))
    except Exception as error:  # damaged files and unknown architectures fail in many ways
        raise UserError(unloadable("tokenizer", name, error)) from error


def load_draft(
    draft: PreTrainedModel | str | Path,
    target: PreTrainedModel,
    tokenizer: Any = None,
    revision: str = "main",
    quantised: str | None = None,
    vocabulary: str | Path | None = None,
    gguf: str | None = None,
) -> PreTrainedModel:
    """The draft model in the target's dtype and on its device, made lighter where that is asked for.

    A model that is loaded already keeps its dtype and device, and is made lighter in place.

    Args:
        draft: hub id, folder, GGUF file or loaded model.
        target: the target that it drafts for.
        tokenizer: the target's tokenizer; None: that of what the target was loaded from. The draft's own one is
            compared with it where both can be read.
        revision: revision on the hub.
        quantised: one of `gistgate.models.lighter.KINDS`.
        vocabulary: file of a `gistgate.models.lighter.Subset`.
        gguf: GGUF file in the folder or hub repository that `draft` names.

    Raises:
        UserError: the model cannot be loaded, its tokenizer is another one, or it cannot be made lighter as asked.
    """
    check_kind(quantised or "none")
    if draft is target and (vocabulary is not None or quantised not in (None, "none")):
        raise UserError(
            "Target and draft are one loaded model, so that a lighter draft would change the target's answers. Load "
            "the draft a second time, or leave its bits and its vocabulary as they are."
        )
    subset = None if vocabulary is None else Subset.load(vocabulary)
    if isinstance(draft, str | Path):
        draft = named_draft(draft, target, tokenizer, revision, gguf)
    else:
        check_draft_tokenizer(target, draft, tokenizer)
    if subset is not None:
        always = eos_ids(target, tokenizer) if tokenizer is not None else ()
        draft = subset.apply(draft, tokenizer, always)
        draft.subset_file = str(vocabulary)
    return quantise(draft, quantised)


def named_draft(
    draft: str | Path, target: PreTrainedModel, tokenizer: Any, revision: str, gguf: str | None
) -> PreTrainedModel:
    """The draft model of this name as it is, compared with the target's tokenizer."""
    name, place = placed(str(draft), gguf)
    model = load_model("draft", name, target.device, dtype=target.dtype, revision=revision, **place)
    check_smaller(target, model)
    check_draft_tokenizer(target, model, tokenizer, partial(load_draft_tokenizer, name, revision=revision, **place))
    return model


def load_model(role: str, name: str, device: Any, **options: Any) -> PreTrainedModel:
    """A model for decoding; `role` names it in messages, and `options` go to transformers.

    Raises:
        UserError: the model cannot be loaded, or memory does not suffice for it.
    """
    file = options.get("gguf_file")
    if file is not None and Path(name).is_file():
        raise UserError(f"{name} is a file, and {file} is to lie in a folder. Name the folder, or leave {file} away.")
    check_gguf(name, options)
    check_memory({name: weight_size(name, options["dtype"], file)}, device)
    try:
        model = whole_model(name, **options)
    except Exception as error:  # damaged files and unknown architectures fail in many ways
        if is_out_of_memory(error):
            raise
        raise UserError(unloadable(role, name, error)) from error
    return model.to(device).eval()


def unloadable(role: str, name: str, error: Exception) -> str:
    """The sentence for a model or tokenizer that cannot be loaded."""
    return f"The {role} '{name}' could not be loaded ({first_line(error)}). {hub_remedy(name, error)}"


def parse_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """Settings of a rule from texts such as `theta=0.9`; numbers and true/false become values.

    Raises:
        UserError: a text without an equals sign.
    """
    settings: dict[str, Any] = {}
    for pair in pairs:
        name, sign, text = pair.partition("=")
        if not sign:
            raise UserError(f"'{pair}' is no setting. Write it as name=value, for instance theta=0.9.")
        settings[name.strip()] = value_of(text.strip())
    return settings


def value_of(text: str) -> Any:
    """A truth value, a whole number, a number, or the text itself."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


# ---- The reader of GGUF files; a module of its own, because exported folders carry none.


def check_reader() -> None:
    """Raise UserError unless the package that reads GGUF files is installed."""
    if find_spec("gguf") is None:
        raise UserError(
            "GGUF files are read by the package `gguf`. Run `pip install '.[gguf]'` in the clone of GistGate."
        )


def gguf_size(file: Path, dtype: Any) -> Size:
    """What a GGUF file needs: while it is unpacked, all of it in float32 and the model beside it.

    Raises:
        UserError: the file is empty, cut off or something else.
    """
    numbers = count(file)
    loaded = numbers * (torch.float32 if dtype == "auto" else dtype).itemsize
    return Size(loaded, loaded + numbers * torch.float32.itemsize)


def count(file: Path) -> int:
    """Numbers in all tensors of a GGUF file."""
    from gguf import GGUFReader

    try:
        return sum(int(tensor.n_elements) for tensor in GGUFReader(file).tensors)
    except Exception as error:  # damaged files fail in many ways
        if is_out_of_memory(error):
            raise
        raise UserError(
            f"The GGUF file {file} could not be read ({first_line(error)}). It is empty, cut off or something else; "
            "download it or write it again."
        ) from error
