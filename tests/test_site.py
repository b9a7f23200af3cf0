"""The documentation builds as a site without a warning, and its pages load nothing from another host."""

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytest.importorskip("material", reason="the site needs MkDocs Material: pip install -e '.[docs]'")
pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
LOADING = {"script", "link", "img", "iframe", "source", "video", "audio", "embed", "object"}


class References(HTMLParser):
    """Collects what a page loads, what it links to, and the classes of its elements."""

    def __init__(self, page: Path):
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.classes: set[str] = set()
        self.feed(page.read_text())

    def handle_starttag(self, tag, attrs):
        named = dict(attrs)
        self.classes |= set((named.get("class") or "").split())
        for name in ("src", "srcset", "href", "data"):
            if named.get(name):
                (self.loads if tag in LOADING else self.links).append(named[name])


def build(source: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Build as `make docs` does. The option --quiet would hide warnings from --strict, and every build would pass."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    return subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site) -> dict[Path, References]:
    return {page: References(page) for page in site.rglob("*.html")}


def test_every_page_of_the_documentation_is_in_the_site(site):
    names = {path.stem for path in (ROOT / "docs").glob("*.md")} - {"index"}
    assert names | {"index", "contents", "CONTRIBUTING", "CHANGELOG"} <= {path.stem for path in site.glob("*.html")}
    assert "speculative decoding" in (site / "index.html").read_text()  # the README is the home page


def test_no_page_loads_scripts_styles_or_pictures_from_another_host(pages):
    assert not [(page.name, url) for page, found in pages.items() for url in found.loads if urlsplit(url).netloc]


def test_no_style_loads_fonts_or_styles_from_another_host(site):
    loaded = r"(?:@import\s+|url\()\s*[\"']?((?:https?:)?//[^\"')]+)"
    inline = [(page, re.findall(loaded, page.read_text())) for page in site.rglob("*.html")]
    sheets = [(sheet, re.findall(loaded, sheet.read_text())) for sheet in site.rglob("*.css")]
    assert sheets
    assert not [(path.name, urls) for path, urls in inline + sheets if urls]


def test_no_page_contains_what_the_theme_draws_with_a_script_from_another_host(pages):
    """The theme's own script fetches Mermaid from a public server for each element of this class."""
    assert not [page.name for page, found in pages.items() if "mermaid" in found.classes]


def test_every_link_inside_the_site_leads_to_a_file(site, pages):
    for page, found in pages.items():
        if page.name == "404.html":  # its addresses begin at the root of a host
            continue
        for url in (*found.links, *found.loads):
            parts = urlsplit(url)
            if not parts.scheme and not parts.netloc and parts.path:
                assert (page.parent / unquote(parts.path)).is_file(), (page.name, url)


def test_a_link_to_a_source_file_is_plain_text(site):
    home = (site / "index.html").read_text()
    assert "models/pairs/qwen2.5-7b-0.5b.yaml" in home
    assert 'href="models/' not in home


@pytest.fixture
def copied(tmp_path) -> Path:
    """The repository with a copy of docs/ that a test may damage."""
    source = tmp_path / "source"
    source.mkdir()
    for path in ROOT.iterdir():
        if path.name not in {"docs", ".git"}:
            (source / path.name).symlink_to(path)
    shutil.copytree(ROOT / "docs", source / "docs")
    return source


@pytest.mark.parametrize("link", ["missing.md", "use.md#nowhere", "../README.md#nowhere"])
def test_a_broken_link_fails_the_build(copied, tmp_path, link):
    assert build(copied, tmp_path / "sound").returncode == 0
    with (copied / "docs" / "tour.md").open("a") as page:
        page.write(f"\n[broken]({link})\n")
    done = build(copied, tmp_path / "broken")
    assert done.returncode != 0
    assert link.rpartition("/")[2].replace("README", "index") in done.stderr


def test_a_page_that_the_index_does_not_name_fails_the_build(copied, tmp_path):
    (copied / "docs" / "orphan.md").write_text("# A page\n")
    done = build(copied, tmp_path / "site")
    assert done.returncode != 0
    assert "orphan.md" in done.stderr


def test_make_builds_strictly_and_shows_warnings():
    recipe = re.search(r"^docs: .*\n\t(.*)", (ROOT / "Makefile").read_text(), flags=re.M)
    assert recipe
    assert "--strict" in recipe[1]
    assert not re.search(r"--quiet|-q\b", recipe[1])
