"""Renew what the pages show, behind a run of `make repro`: python docs/outputs.py [PAGE ...], or
--pictures.

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

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"(?<=<!-- run -->\n```console\n)(.*?)(?=```\n)", re.DOTALL)
COMMAND = re.compile(
    r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE
)  # a backslash continues it; its output
END = "-- end of a command --"
MODELS = "models/embedded/target --draft models/embedded/draft --gate models/export"
PROMPT = "\n".join(re.findall(r"PROMPT=\$'(.*)\\n(.*)'", (ROOT / "docs/tour.md").read_text())[0])


def filled(text: str) -> str:
    """The page with new outputs. Status 1 is a refusal, which a page may show."""
    blocks = [COMMAND.findall(found[0]) for found in BLOCK.finditer(text)]
    commands = [command for block in blocks for command, _ in block]
    script = "\n".join(f"{command}\n[ $? -lt 2 ] || exit 2\necho '{END}'" for command in commands)
    ran = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
        "text": True,
        "env": os.environ | {"PROMPT": PROMPT},
    }
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, **ran)
    if done.returncode or "Traceback" in done.stdout:
        sys.exit(f"A command failed: {done.stdout[-2000:]}")
    lines = (
        line
        for line in done.stdout.splitlines(keepends=True)
        if line.strip() and "it/s]" not in line
    )
    outputs = iter("".join(lines).split(f"{END}\n"))  # without bars of progress
    pasted = (
        "".join(f"$ {command}\n{shown(old, next(outputs))}" for command, old in block)
        for block in blocks
    )
    return BLOCK.sub(lambda _: next(pasted), text)


def shown(old: str, new: str) -> str:
    """The new output, shortened to as many lines as stand around the `...` of the old one."""
    before, dots, behind = old.partition("...\n")
    lines = new.splitlines(keepends=True)
    head = before.count("\n")
    tail = behind.count("\n")
    return "".join([*lines[:head], dots, *lines[len(lines) - tail :]]) if dots else new


def take_pictures(folder: Path) -> None:
    """The page of a trace and the demo, as Chromium shows them."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as place, sync_playwright() as driver:
        trace = Path(place) / "trace.html"
        subprocess.run(
            ["gistgate", "trace", *MODELS.split(), "--html", trace, "--", PROMPT],
            cwd=ROOT,
            check=True,
        )
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": 1100, "height": 1000})
        page.goto(trace.as_uri())
        page.screenshot(path=folder / "trace.png")
        demo = subprocess.Popen(
            ["gistgate", "demo", *MODELS.split(), "--no-browser"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            address = next(
                found[0] for line in demo.stdout or () if (found := re.search(r"http://\S+/", line))
            )
            page.goto(address)
            page.fill("#prompt", PROMPT)
            page.click("#go")
            page.get_by_text("Done.").wait_for()
            page.screenshot(path=folder / "demo.png")
        finally:
            demo.terminate()


def main(names: list[str]) -> None:
    if names == ["--pictures"]:
        take_pictures(ROOT / "docs" / "images")
        return
    for page in map(Path, names or [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]):
        text = page.read_text()
        if (new := filled(text)) != text:
            page.write_text(new)
            print(f"renewed: {page}")


if __name__ == "__main__":
    main(sys.argv[1:])
