"""The site: every Markdown page of the repository, read as it lies there. `make docs` builds it into build/docs.

Sources are read from the root of the repository, so that the README, the configurations and the reports are pages
too, and links between pages are what they are in a checkout. Pages need no directive of Sphinx: the navigation is
added here, by folder, and takes up whatever page is put into one.
"""

import re
import tomllib
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]

with (ROOT / "pyproject.toml").open("rb") as file:
    release = tomllib.load(file)["project"]["version"]

project = "msd"
author = "the authors of msd"
copyright = "the authors of msd"
extensions = ["myst_parser"]
root_doc = "docs/index"
include_patterns = ["README.md", "CHANGELOG.md", "docs/**.md", "configs/README.md", "perf/**.md"]
exclude_patterns = [".*", "build", "dist", "demo-corpus", "msd", "notebooks", "tests", "perf/out", "**/__pycache__"]

# Anchors are those of a checkout seen on the web: a heading in lower case, joined by hyphens.
myst_heading_anchors = 6
nitpicky = True

html_theme = "furo"
html_title = f"msd {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
html_theme_options = {"navigation_with_keys": True, "top_of_page_buttons": []}
pygments_style = "friendly"
pygments_dark_style = "monokai"

NAVIGATION = {
    "docs/index": {
        "Tutorials": ["tutorials/train", "tutorials/train-ddp", "tutorials/*"],
        "With your trainer": ["how-to/use-with-ddp-and-fsdp2", "how-to/use-with-*"],
        "How to": ["how-to/*"],
        "Deployment": ["deployment/one-machine", "deployment/*"],
        "Reference": ["reference/*"],
        "Explanation": ["architecture", "explanation/order", "explanation/plan", "explanation/*", "glossary"],
        "The project": ["/README", "/CHANGELOG", "decisions/README", "/configs/README", "/perf/README"],
    },
    "docs/decisions/README": {"": ["[0-9]*"]},
    "perf/README": {"": ["reports/*"]},
}
"""By page: captions, with patterns of the pages under them; one that was named before is left out of later patterns."""


def add_navigation(app: Sphinx, docname: str, source: list[str]) -> None:
    """Append trees of pages to those that lead to others, and make links to folders lead somewhere."""
    source[0] = re.sub(r"\[([^\]\n]+)\]\(([^)\s#:]+)\)", lambda found: _link(app, docname, found), source[0])
    named: set[str] = set()
    for caption, patterns in NAVIGATION.get(docname, {}).items():
        pages = _pages(docname, patterns, sorted(app.project.docnames), named)
        named |= set(pages)
        options = [":hidden:", *([f":caption: {caption}"] if caption else [])]
        tree = "\n".join([*options, "", *(f"/{page}" for page in pages)])
        source[0] += f"\n\n```{{toctree}}\n{tree}\n```\n"


def _pages(docname: str, patterns: list[str], known: list[str], named: set[str]) -> list[str]:
    folder = Path(docname).parent
    found: list[str] = []
    for pattern in patterns:
        full = pattern[1:] if pattern.startswith("/") else str(folder / pattern)
        found += [name for name in known if Path(name).match(full) and name not in named and name not in found]
    return found


def _link(app: Sphinx, docname: str, found: re.Match[str]) -> str:
    """Return a link to a folder as one to its first page, or its text where it has none; other links as they are."""
    text, target = found.groups()
    place = (app.srcdir / docname).parent / target
    if not place.is_dir():
        return found.group()
    return f"[{text}]({target.rstrip('/')}/README.md)" if (place / "README.md").is_file() else text


def lead_to_index(app: Sphinx, error: Exception | None) -> None:
    """Write a first page at the top that leads to the index."""
    if error is None and app.builder.format == "html":
        page = '<!doctype html><title>msd</title><meta http-equiv="refresh" content="0; url=docs/index.html">\n'
        (Path(app.outdir) / "index.html").write_text(page, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect what is above."""
    app.connect("source-read", add_navigation)
    app.connect("build-finished", lead_to_index)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
