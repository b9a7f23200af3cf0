"""Tokenizers: prompts and chats as token ids, and whether two models mean the same by an id."""

import re
import sys
import warnings
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import has_file

from gistgate.core.utils import UserError, first_line, nearest
from gistgate.models.places import check_place, or_refuse, placed, stored_file, tokenizer_files

# ---- Prompts and chats.

HALF = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair, as Python also reads a byte that is no UTF-8."""
LOCALE = ", or set LC_ALL=C.UTF-8: this locale has ASCII letters alone"


def is_utf8() -> bool:
    """Whether Python reads the command line as UTF-8."""
    return sys.getfilesystemencoding() == "utf-8"


def load_tokenizer(name: str, **place: Any) -> PreTrainedTokenizerBase:
    """A tokenizer by hub id or folder; `place` goes to `from_pretrained`."""
    place["trust_remote_code"] = False

    def read() -> PreTrainedTokenizerBase:
        tokenizer: PreTrainedTokenizerBase
        with read_fast(place.get("gguf_file")):
            tokenizer = AutoTokenizer.from_pretrained(name, **place)
        ids = set(tokenizer.get_vocab().values())
        if ids <= tokenizer.added_tokens_decoder.keys():  # made up, for want of files
            raise ValueError("the tokenizer has no tokens of its own")
        return tokenizer

    return or_refuse("tokenizer", name, read, **place)


def read_fast(gguf_file: str | None) -> AbstractContextManager[None]:
    """While open, transformers parses a GGUF file by our faster reader."""
    if gguf_file is None:
        return nullcontext()
    from gistgate.models.gguf_file import Reader, parsed_by

    return parsed_by(Reader)


def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """The ids of a prompt: once what the tokenizer puts in front of a text, and nothing of what it
    puts behind one.
    """
    if HALF.search(text):
        raise UserError(
            "A prompt holds bytes that are no UTF-8, or half a character. Correct its text"
            f"{'' if is_utf8() else LOCALE}."
        )
    front = ids_in_front(tokenizer)
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids if ids[:1] == front[:1] else front + ids


def ids_in_front(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The ids that a tokenizer puts in front of every text, such as a mark of its beginning."""
    bare = tokenizer.encode("a", add_special_tokens=False)
    whole: list[int] = tokenizer.encode("a")
    for length in range(len(whole)):
        if whole[length : length + len(bare)] == bare:
            return whole[:length]
    return []


def rendered(
    tokenizer: Any,
    messages: list[dict[str, str]],
    add_generation_prompt: bool = True,
    chat_template: str | None = None,
    **arguments: Any,
) -> str:
    """A chat as the template of this name writes it out with these arguments, with the mark of an
    answer or without.

    What it refuses is refused: without a text that is left away, another question would be asked.
    """
    text = template(tokenizer, chat_template)
    try:
        return str(
            tokenizer.apply_chat_template(
                messages,
                chat_template=text,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
                **arguments,
            )
        )
    except Exception as error:  # a template is a program of the model's makers
        has_system = any(turn["role"] == "system" for turn in messages)
        remedy = "Leave --system away" if has_system else "Mend the template, or leave --chat away"
        raise UserError(
            f"The tokenizer's chat template fails ({first_line(error)}). {remedy}."
        ) from error


def template(tokenizer: Any, name: str | None = None) -> str:
    """The chat template with this name, or the only or default one; transformers takes an unknown
    name for a text.
    """
    templates = tokenizer.chat_template
    if not templates:
        raise UserError(
            "The tokenizer has no chat template. Leave --chat away (`prompting.chat_template:"
            " false`)."
        )
    if isinstance(templates, str):
        templates = {"default": templates}
    name = name or "default"
    if name not in templates:
        raise UserError(
            f"The tokenizer has no chat template '{name}'. {nearest(name, templates)} Say"
            " --template NAME."
        )
    return str(templates[name])


def warn_untemplated(tokenizer: PreTrainedTokenizerBase, remedy: str) -> None:
    """Warn that prompts are not wrapped in the tokenizer's chat template, if it has one; `remedy`
    says what helps.
    """
    if tokenizer.chat_template is not None:
        warnings.warn(
            "The tokenizer has a chat template, and prompts are not wrapped in it."
            f" Instruction-tuned models answer worse without it; {remedy}.",
            stacklevel=3,
        )


# ---- Whether target and draft mean the same by an id.

SPARE = 64
"""Tokens that only one of two tokenizers may know, or a hundredth of all: families add special
tokens later."""
COMPARED: WeakKeyDictionary[PreTrainedModel, WeakSet[Any]] = WeakKeyDictionary()
"""The tokenizers, or targets in their place, that a draft model was compared with: a server asks
with every request."""


def check_draft_tokenizer(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    tokenizer: Any = None,
    revision: str | None = None,
) -> None:
    """Refuse a draft whose token ids mean something else than the target's, where both tokenizers
    can be read by the names in the models' configurations.
    """
    partner = target if tokenizer is None else tokenizer
    if draft is target or partner in COMPARED.get(draft, ()):
        return
    if tokenizer is None:
        tokenizer = tokenizer_of("target", target)
    if tokenizer is not None:
        check_same_tokenizer(tokenizer, tokenizer_of("draft", draft, revision))
    COMPARED.setdefault(draft, WeakSet()).add(partner)


def check_same_tokenizer(target: Any, draft: Any) -> None:
    """Refuse two tokenizers of which an id means two tokens, or one knows many more; None is
    trusted.
    """
    if draft is None:
        return
    target_tokens = tokens_by_id(target)
    draft_tokens = tokens_by_id(draft)
    shared = target_tokens.keys() & draft_tokens.keys()
    differing = [index for index in shared if target_tokens[index] != draft_tokens[index]]
    num_alone = len(target_tokens.keys() ^ draft_tokens.keys())
    if differing:
        index = min(differing)
        difference = (
            f"id {index} is {target_tokens[index]!r} for the target and {draft_tokens[index]!r} for"
            " the draft"
        )
    elif num_alone > max(SPARE, len(target_tokens) // 100):
        difference = (
            f"the target's has {len(target_tokens)} tokens and the draft's {len(draft_tokens)}"
        )
    else:
        return
    raise UserError(
        f"The draft model has another tokenizer: {difference}. Use a draft model with the target's"
        " tokenizer, or a drafter without a model such as 'lookup'; if a loaded draft only names"
        " another model, set `draft.config.name_or_path = ''`."
    )


def tokens_by_id(tokenizer: Any) -> dict[int, str]:
    """The vocabulary of a tokenizer by id."""
    return {index: token for token, index in tokenizer.get_vocab().items()}


def tokenizer_of(
    role: str, model: PreTrainedModel, revision: str | None = None
) -> PreTrainedTokenizerBase | None:
    """The tokenizer of what a loaded model came from; None where that is not known or has none."""
    name = str(getattr(model, "gguf_file", None) or model.config.name_or_path)
    # A name that is no folder is a hub id only where the cache holds its configuration: the folder
    # may have moved.
    if name and (Path(name).exists() or stored_file(name, "config.json", revision)):
        name, place = placed(name)
        return readable_tokenizer(role, name, revision, **place)
    return None


def readable_tokenizer(
    role: str, name: str, revision: str | None = None, gguf_file: str | None = None
) -> PreTrainedTokenizerBase | None:
    """A model's own tokenizer, to compare; None where none can be read. Files that lie here and are
    damaged are refused.
    """
    files = tokenizer_files(name, revision, gguf_file)
    try:
        # The hub is first asked with one request: transformers repeats its own for half a minute
        # without a network, and makes a tokenizer up for a folder without one.
        if files or has_file(name, "tokenizer_config.json", revision=revision):
            return AutoTokenizer.from_pretrained(
                name,
                revision=revision,
                gguf_file=gguf_file,
                local_files_only=bool(files),
                trust_remote_code=False,
            )
    except Exception as error:  # no such repository, no access, or files that fail in many ways
        if files:
            check_place("tokenizer", name, gguf_file, revision)
            raise UserError(
                f"The tokenizer of the {role} '{name}' could not be read from {', '.join(files)}"
                f" ({first_line(error)}), so that target and draft cannot be compared. Restore its"
                " files."
            ) from error
    return None
