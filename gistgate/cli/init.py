"""Write the files of a project in which `dvc repro` runs the whole pipeline for a pair and a
task.
"""

import json
import os
import re
import string
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import typer

import gistgate
from gistgate.cli.options import Chat, System, Template, module_of
from gistgate.core.files import write_text
from gistgate.core.utils import UserError
from gistgate.models.options import parse_template

EMBEDDED = "embedded"  # the pair that the pipeline trains, and the task of its world
EMBEDDED_TASK = "wordproblems"
OWN_TASK = "own"  # the task whose file is to be filled in
METHODS = (
    "exact",
    "prob-ratio",
    "autojudge",
)  # those of a new project; its params.yaml has the others as comments
SAMPLE = [{"question": "Tom has 5 apples and buys 4 more. How many apples has Tom?", "answer": "9"}]
SHARED = (
    files("gistgate.cli") / "shared"
)  # links to the repository's own graph, parameters and tasks


def init(
    folder: Annotated[Path, typer.Argument(help="New folder for the project.")],
    target: Annotated[
        str | None, typer.Option(help="Target model: hub id, folder or GGUF file.")
    ] = None,
    draft: Annotated[
        str | None, typer.Option(help="Draft model: hub id, folder or GGUF file.")
    ] = None,
    drafter: Annotated[
        str | None,
        typer.Option(help="In place of a draft model: suffix or lookup, which copy from the text."),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(help="gsm8k, a YAML file, or any lm-eval task; default: a file to fill in."),
    ] = None,
    target_revision: Annotated[
        str | None, typer.Option(help="Revision of the target on the hub.")
    ] = None,
    draft_revision: Annotated[
        str | None, typer.Option(help="Revision of the draft on the hub.")
    ] = None,
    target_gguf: Annotated[
        str | None, typer.Option(help="GGUF file in the target's folder or repository.")
    ] = None,
    draft_gguf: Annotated[
        str | None, typer.Option(help="GGUF file in the draft's folder or repository.")
    ] = None,
    quantise_draft: Annotated[
        str, typer.Option(help="Bits of the draft's weights: none, int8 or int4.")
    ] = "none",
    dtype: Annotated[
        str, typer.Option(help="Type of the weights: float32, bfloat16 or float16.")
    ] = "bfloat16",
    device_map: Annotated[
        str | None, typer.Option(help="Passed to from_pretrained, such as auto.")
    ] = None,
    chat: Chat = False,
    system: System = None,
    template: Template = (),  # type: ignore[assignment]
    embedded: Annotated[
        bool,
        typer.Option(
            "--embedded", help="Let the pipeline train its own small pair instead of naming models."
        ),
    ] = False,
) -> None:
    """Write a small project for a pair and a task, in which `dvc repro` makes a certified gate."""
    import yaml

    from gistgate.models.lighter import check_kind
    from gistgate.models.loading import DTYPES, RETRIEVAL

    if embedded and (target or draft or drafter):
        raise UserError(
            "--embedded trains a pair of its own. Leave it, or --target, --draft and --drafter,"
            " away."
        )
    if drafter not in (None, *RETRIEVAL):
        raise UserError(
            f"There is no drafter '{drafter}' for a project. Use one of: {', '.join(RETRIEVAL)}."
        )
    if not embedded and not (target and bool(draft) != bool(drafter)):
        raise UserError(
            "A project needs --target and either --draft, or --drafter suffix or lookup; or"
            " --embedded."
        )
    if dtype not in DTYPES[1:]:
        raise UserError(f"There is no dtype '{dtype}'. Use one of: {', '.join(DTYPES[1:])}.")
    check_kind(quantise_draft)
    if quantise_draft != "none" and not draft:
        raise UserError(
            "--quantise-draft rounds the weights of a draft model. Name one with --draft, or leave"
            " it out."
        )
    if system is not None and not chat:
        raise UserError("A system text needs a chat. Add --chat, or leave --system out.")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is not empty. Name a new folder for the project.")
    task = task or (EMBEDDED_TASK if embedded else OWN_TASK)
    pair = EMBEDDED
    pair_text = shared("embedded.yaml")
    if not embedded:
        models: dict[str, Any] = {
            "target": model_of(str(target), target_revision, target_gguf, dtype, device_map)
        }
        models |= {"drafter": drafter} if drafter else {}
        if draft:
            lighter = {} if quantise_draft == "none" else {"quantise": quantise_draft}
            models["draft"] = (
                model_of(str(draft), draft_revision, draft_gguf, dtype, device_map) | lighter
            )
        pair = re.sub(r"[^\w.-]+", "-", folder.resolve().name)
        pair_text = yaml.safe_dump(models, sort_keys=False)
    extras = "pipeline,gguf" if "gguf_file:" in pair_text else "pipeline"
    name, contents = task_files(task)
    in_git = any(
        (above / ".git").exists() for above in folder.resolve().parents
    )  # DVC wants to know
    contents |= {
        f"models/pairs/{pair}.yaml": pair_text,
        ".dvc/config": (
            "[core]\n    analytics = false\n" + ("" if in_git else "    no_scm = true\n")
        ),
        ".gitignore": filled("gitignore"),
        "README.md": filled("README.md", name=folder.resolve().name, pair=pair),
        "dvc.yaml": without_code(shared("graph.yaml")),
        "params.yaml": parameters(pair, name, chat, system, parse_template(template), embedded),
        "requirements.txt": f"gistgate[{extras}]=={gistgate.__version__}\n",
    }
    for place, text in sorted(contents.items()):
        write_text(folder / place, text)
        typer.echo(folder / place)
    fill = " Fill in data/tasks first." if task == OWN_TASK else ""
    command = "dvc repro" if embedded else "dvc repro report export"
    typer.echo(
        f"The project is written.{fill} Run `{command}` in {folder}; its README.md says more."
    )


def shared(name: str) -> str:
    """The text of one of the repository's own files, which come with the package."""
    return (SHARED / name).read_text(encoding="utf-8")


def filled(name: str, /, **values: str) -> str:
    """A template with its values put in."""
    place = files("gistgate.cli") / f"templates/{name}.template"
    return string.Template(place.read_text(encoding="utf-8")).substitute(values)


def without_code(graph: str) -> str:
    """The graph without dependencies on source files: a project depends on an installed version
    instead.
    """
    code = r"(?:gistgate|pipeline)(?:/[\w./]+)?"
    graph = re.sub(rf",\s*{code}(?=\s*[,\]])", "", graph)
    graph = re.sub(rf"\[{code}(?:,\s*|(?=\]))", "[", graph)
    return (
        re.sub(rf"\n +- {code}(?=\n)", "", graph)
        .replace("deps: [", "deps: [requirements.txt, ")
        .replace(", ]", "]")
    )


def parameters(
    pair: str, task: str, chat: bool, system: str | None, arguments: dict[str, Any], embedded: bool
) -> str:
    """The repository's parameters for another pair and task, no calibration prompt of which was
    ever judged.
    """
    text = shared("params.yaml")
    own = {} if embedded else {"decoding.batch_size": 32, "decoding.workers": 1}
    named: dict[str, Any] = {"pair": pair, "task": task, "prompting.num_fewshot": None}
    named |= {
        "prompting.chat_template": chat,
        "prompting.system": system,
        "prompting.arguments": arguments,
    }
    for key, value in {**named, "prompts.draw": 1, **own}.items():
        block, _, name = key.rpartition(".")
        start = text.index(f"\n{block}:\n") if block else 0
        found = re.compile(rf"^({'  ' if block else ''}{name}:) +\S+", re.M).search(text, start)
        assert found is not None, f"params.yaml has no {key}"
        text = f"{text[: found.start()]}{found[1]} {json.dumps(value)}{text[found.end() :]}"
    return text if embedded else with_methods(text)


def with_methods(text: str) -> str:
    """The parameters with all methods but a few as comments, so that who wants them takes the marks
    away.
    """
    before, methods, behind = re.split(
        r"(?<=\nmethods:\n)(.*?\n)(?=\n)", text, maxsplit=1, flags=re.S
    )
    each = re.findall(r"^  [\w-]+:.*\n(?:   .*\n)*", methods, re.M)
    kept = (
        one if one.split(":")[0].strip() in METHODS else re.sub("^  ", "  # ", one, flags=re.M)
        for one in each
    )
    return before + "".join(kept) + behind


def model_of(
    model: str, revision: str | None, gguf: str | None, dtype: str, device_map: str | None
) -> dict[str, Any]:
    """A model of the pair's file; a local folder by its absolute path, since stages run in the
    project.
    """
    from gistgate.models.places import check_place, placed

    name, place = placed(model, gguf)
    check_place("model", name, place.get("gguf_file"))
    if Path(name).is_dir():
        name = str(Path(name).resolve())
    values = {
        "model": name,
        "revision": revision,
        "gguf_file": place.get("gguf_file"),
        "device_map": device_map,
    }
    return {**{key: value for key, value in values.items() if value is not None}, "dtype": dtype}


def task_files(task: str) -> tuple[str, dict[str, str]]:
    """The task's name and its files; for a task of lm-eval only a note, because DVC wants the
    folder.
    """
    place = "data/tasks"
    if task == OWN_TASK:
        lines = "".join(json.dumps(row) + "\n" for row in SAMPLE)
        documents = {f"{place}/documents/{split}.jsonl": lines for split in ("train", "test")}
        return task, {f"{place}/{task}.yaml": filled("task.yaml", task=task), **documents}
    is_file = task.endswith((".yaml", ".yml"))
    tasks = module_of("gistgate.lm_eval.task", "pipeline")
    path = Path(task) if is_file else Path(str(SHARED / f"tasks/{task}.yaml"))
    if not is_file and not path.exists():
        if (file := tasks.entry_of(task, None)[1].yaml_path) is not None:
            tasks.check_files(task, file)
        note = f"The task {task} is lm-eval's own. A file {task}.yaml in this folder replaces it.\n"
        return task, {f"{place}/README.md": note}
    if not path.is_file():
        raise UserError(f"The task file {task} is missing. Correct the path.")
    text = path.read_text(encoding="utf-8")
    if (named := tasks.NAME.search(text)) and named[
        1
    ] != path.stem:  # None: an included file names it
        raise UserError(
            f"The task in {path} is called '{named[1]}'. Rename the file to"
            f" {named[1]}{path.suffix}."
        )
    tasks.check_files(path.stem, path)
    found = {f"{place}/{path.stem}.yaml": text}
    for part in tasks.files_of(path):
        inside = Path(os.path.relpath(part, path.parent))
        if ".." in inside.parts:
            raise UserError(
                f"The task file {path} takes in {part}, which lies outside its folder. Copy it into"
                " that."
            )
        if part.resolve() != path.resolve():
            found[f"{place}/{inside.as_posix()}"] = part.read_text(encoding="utf-8")
    for file in path.with_name(path.stem.replace("-", "_")).glob(
        "*.jsonl"
    ):  # the documents of a shipped task
        found[f"{place}/{file.parent.name}/{file.name}"] = file.read_text(encoding="utf-8")
    return path.stem, found
