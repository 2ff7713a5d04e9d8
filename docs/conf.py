"""The documentation site: ``make docs`` writes it to build/docs."""

from __future__ import annotations

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.ext.napoleon.docstring import GoogleDocstring

import lm_latent_eval

# Napoleon takes what precedes a colon in an attribute's docstring for its type: here
# docstrings of attributes are prose.
GoogleDocstring._parse_attribute_docstring = lambda self: [*self._lines]

project = "lm_latent_eval"
author = "The lm_latent_eval developers"  # as CITATION.cff has them
project_copyright = author
version = release = lm_latent_eval.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.coverage",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
source_suffix = {".md": "markdown"}
myst_enable_extensions = ["deflist", "dollarmath"]
myst_heading_anchors = 3
suppress_warnings = ["myst.strikethrough"]

html_theme = "furo"
html_title = "lm_latent_eval"
html_static_path = ["_static"]
html_css_files = ["output.css"]
copybutton_selector = "div:not(.highlight-text, .highlight-none) > div.highlight > pre"
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_default_options = {"members": True, "show-inheritance": True}
coverage_show_missing_items = True  # with -W, an undocumented name is an error
napoleon_google_docstring = True
napoleon_numpy_docstring = False


def highlight_doctests(app: Sphinx, doctree: nodes.document) -> None:
    """Mark indented blocks with prompts as Python."""
    for block in doctree.findall(nodes.literal_block):
        if block.astext().startswith(">>>"):
            block["language"] = "pycon"


def setup(app: Sphinx) -> None:
    """Connect the above."""
    app.connect("doctree-read", highlight_doctests)
