# SPDX-License-Identifier: BSD-3-Clause
"""Sphinx: the pages of this repository and the reference of the API. ``make docs`` builds it.

The sources are the repository's own files, where they lie: README.md is the first page, and a link
between two pages is the same on a code host and in what is built.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

import baraquant

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "docs"))  # cpp_reference

project = "baraquant"
author = copyright = "baraquant contributors"
version = release = baraquant.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "cpp_reference"]
root_doc = "README"
include_patterns = ["*.md", "docs/**.md", "docs/**.rst", "examples/**.md"]
# These modules import packages that the others do without. Where one is not installed, its page is
# left out: with autodoc's mocks of the packages, the page would show what no user has.
LEFT_OUT = [page for page in ("transformers", "peft") if importlib.util.find_spec(page) is None]
exclude_patterns = ["build", "dist", "results", ".*", "**/__pycache__"]
exclude_patterns += [f"docs/api/{page}.rst" for page in LEFT_OUT]
nitpicky = True
# No other project's index is fetched: the build needs no network.
nitpick_ignore_regex = [
    (r"py:.*", r"(torch|transformers|peft|collections|contextlib|fnmatch|pathlib|os|typing)\b.*"),
    (r"py:.*", r"(int|str|float|bool|bytes|None|Ellipsis|object)"),
    (r"py:class", r"Tensor"),  # in overloads, whose annotations are read from the source
    (r"py:.*", r"([A-Z][a-z]+Error|StopIteration|optional)"),
    (r"py:.*", r"baraquant\.(nn\.training\.quantizers|workflow\.\w+)\..*"),  # not public
    (r"py:.*", r"baraquant\.configs\.C"),
    (r"cpp:.*", r"(at|c10|std|torch)(::.*)?|int64_t"),
    (r"cpp:.*", r"baraquant(::(backward|nn))?"),  # a namespace is nothing to link to
]

# ---- Docstrings ---------------------------------------------------------------------------------

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_google_docstring, napoleon_numpy_docstring = True, False
napoleon_use_ivar = True  # attributes as a list
napoleon_custom_sections = ["Gradient", "Rounding"]

# ---- Markdown -----------------------------------------------------------------------------------

myst_heading_anchors = 4  # spelled as GitHub does
MARK = re.compile(r"^<!--(=[\w.-]+|/)-->$", re.MULTILINE)  # around blocks of scripts/figures.py
LINK = re.compile(r"\[([^\]]+)\]\((?!\w+:|#)([^)\s#]+)\)")
CONTENTS = """
```{toctree}
:hidden:
:caption: Pages

{pages}
```

```{toctree}
:hidden:
:caption: API

{api}
```

```{toctree}
:hidden:
:caption: The project

CONTRIBUTING
CHANGELOG
SECURITY
examples/cpp/README
```
"""
PAGES = [
    *("migration", "guide", "training", "learned_scales", "training_integers", "norms"),
    *("language_model", "distributed", "serving", "served"),
    *("fine_tuning", "adapters", "ops", "speed"),
    *("speed_ops", "speed_int4", "speed_products", "models", "install", "limits", "testing"),
    "versions",
]
API = [
    *("baraquant", "qat", "nn", "ops", "ops_backward", "reference", "calibration", "export"),
    "graph",
    *("transformers", "peft", "parallel", "info", "cpp"),
]


def prepare(app: Sphinx, name: str, source: list[str]) -> None:
    """Removes the marks of scripts/figures.py, fits links, gives the first page its contents."""
    folder = Path(app.env.doc2path(name)).parent

    def built(link: re.Match[str]) -> str:
        target = folder / link[2]
        if target.is_dir():
            return link[1]
        if "results" in target.parts:  # a result's table: a file to download, not a page
            return f"[{link[1]}](path:{link[2]})"
        return link[0]

    text = LINK.sub(built, MARK.sub("", source[0]))
    if name == root_doc:
        pages = [f"docs/{page}" for page in PAGES if (ROOT / f"docs/{page}.md").exists()]
        api = [f"docs/api/{page}" for page in API if page not in LEFT_OUT]
        text += CONTENTS.replace("{pages}", "\n".join(pages)).replace("{api}", "\n".join(api))
    source[0] = text


def setup(app: Sphinx) -> None:
    """Registers what this file adds to Sphinx."""
    app.connect("source-read", prepare)


# ---- Pages --------------------------------------------------------------------------------------

html_theme = "furo"
html_title = f"baraquant {version}"
html_copy_source = False
templates_path = ["templates"]
html_additional_pages = {"index": "start.html"}  # leads to README.html
