"""Build the site from the same pages that a code host shows: called by MkDocs, named in mkdocs.yml.

The README becomes the home page, and pages and results outside docs/ join the site. Links are written for the
repository; in the site they lead to the page, or become plain text where the site has no such file.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent
MOVED = {"README.md": "index.md", "docs/index.md": "contents.md"}
"""Pages whose name in the site differs from their name in the repository."""
PROJECT = ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "benchmarks/README.md")
LINK = re.compile(r"\[([^\[\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Take the order of pages from docs/index.md: every heading above a table of pages is a section."""
    parts = re.split(r"^## ", (ROOT / "docs" / "index.md").read_text(), flags=re.M)[1:]
    named = {part.splitlines()[0]: re.findall(r"^\| \[.*?\]\(([\w-]+\.md)\)", part, flags=re.M) for part in parts}
    sections = [{title: pages} for title, pages in named.items() if pages]
    config.nav = [{"Home": "index.md"}, {"Pages and terms": "contents.md"}, *sections, {"Project": [*PROJECT]}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files outside docs/, and let the README take the place of docs/index.md."""
    files.remove(files.src_uris["index.md"])
    results = (path.relative_to(ROOT).as_posix() for path in sorted(ROOT.glob("benchmarks/results/*.*")))
    for path in (*MOVED, *PROJECT, *results):
        files.append(File.generated(config, uri_of(path), abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let each link that is written for the repository lead to the same file in the site."""
    here = posixpath.dirname(Path(page.file.abs_src_path).relative_to(ROOT).as_posix())
    start = posixpath.dirname(page.file.src_uri) or "."

    def adapted(link: re.Match[str]) -> str:
        text, target, fragment = link.groups(default="")
        path = posixpath.normpath(posixpath.join(here, target))
        uri = uri_of(path)
        if uri in files.src_uris:
            return f"[{text}]({posixpath.relpath(uri, start)}{fragment})"
        return text if (ROOT / path).exists() else link[0]

    return LINK.sub(adapted, markdown)


def uri_of(path: str) -> str:
    """The name in the site of a file of the repository."""
    return MOVED.get(path, path.removeprefix("docs/"))
