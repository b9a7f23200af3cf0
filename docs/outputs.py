"""Renew what the pages show, behind a run of `make repro`: python docs/outputs.py [PAGE ...], or
--pictures, or --tables [PAGE ...] for the tables alone (docs/tables.py).

Commands of a `console` block behind the line `<!-- run -->` are run, all those of a page in one
shell, and their output is pasted under them; a line `...` goes on standing for what it stood for.
$PROMPT is the question of the tour. The pictures need Chromium (`apt-get install chromium`) and the
package playwright.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tables import renewed_tables

from gistgate.certify.card import Card
from gistgate.certify.html import html_of
from gistgate.core.files import read_json
from gistgate.core.utils import dataclass_from

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"(?<=<!-- run -->\n```console\n)(.*?)(?=```\n)", re.DOTALL)
COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
"""A command, which a backslash continues, and its output."""
CARD = ROOT / "docs/results/cards/qwen2.5-coder-0.5b-for-1.5b-sums.json"
END = "-- end of a command --"
MODELS = "models/embedded/target --draft models/embedded/draft --gate models/export"
PROMPT = "\n".join(re.findall(r"PROMPT=\$'(.*)\\n(.*)'", (ROOT / "docs/tour.md").read_text())[0])


def renewed(text: str) -> str:
    """The page with new outputs."""
    commands = []
    for block in BLOCK.findall(text):
        commands += [command for command, _ in COMMAND.findall(block)]
    outputs = iter(outputs_of(commands))

    def with_output(command: re.Match[str]) -> str:
        return f"$ {command[1]}\n{shortened(next(outputs), command[2])}"

    return BLOCK.sub(lambda block: COMMAND.sub(with_output, block[0]), text)


def outputs_of(commands: list[str]) -> list[str]:
    """What the commands print in one shell, without bars of progress. Status 1 is a refusal, which
    a page may show.
    """
    script = "\n".join(f"{command}\n[ $? -lt 2 ] || exit 2\necho '{END}'" for command in commands)
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=ROOT,
        env=os.environ | {"PROMPT": PROMPT},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode or "Traceback" in done.stdout:
        sys.exit(f"A command failed: {done.stdout[-2000:]}")
    lines = done.stdout.splitlines(keepends=True)
    shown = [line for line in lines if line.strip() and "it/s]" not in line]
    return "".join(shown).split(f"{END}\n")


def shortened(output: str, before: str) -> str:
    """The output, in as many lines as stood around the `...` of the one before."""
    above, dots, below = before.partition("...\n")
    if not dots:
        return output
    lines = output.splitlines(keepends=True)
    head = lines[: above.count("\n")]
    tail = lines[len(lines) - below.count("\n") :]
    return "".join([*head, dots, *tail])


def write_trace(page: Path) -> None:
    """The page of a trace."""
    command = ["gistgate", "trace", *MODELS.split(), "--html", page, "--", PROMPT]
    subprocess.run(command, cwd=ROOT, check=True)


def write_certificate(page: Path) -> None:
    """The page of a published card."""
    entries = read_json(CARD)
    del entries["checksum"]
    page.write_text(html_of(dataclass_from(Card, entries), []))


def take_pictures() -> None:
    """Write the pages as Chromium shows them."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as place, sync_playwright() as driver:
        chromium = shutil.which("chromium")
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for write, name, height in (
            (write_certificate, "certificate", 740),
            (write_trace, "trace", 1000),
        ):
            path = Path(place) / "page.html"
            write(path)
            page = browser.new_page(viewport={"width": 1100, "height": height})
            page.goto(path.as_uri())
            page.screenshot(path=ROOT / f"docs/images/{name}.png")


def main(arguments: list[str]) -> None:
    if arguments == ["--pictures"]:
        take_pictures()
        return
    only_tables = arguments[:1] == ["--tables"]
    named = arguments[1:] if only_tables else arguments
    for page in map(Path, named or [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]):
        text = page.read_text()
        new = renewed_tables(text)
        if not only_tables:
            new = renewed(new)
        if new != text:
            page.write_text(new)
            print(f"renewed: {page}")


if __name__ == "__main__":
    main(sys.argv[1:])
