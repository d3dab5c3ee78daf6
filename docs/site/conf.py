"""Settings of Sphinx for the site: it opens from the disk, searches there, and asks no network for anything."""

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

from clearhead._common.version import __version__

project = "clearhead"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_design"]
autodoc_default_options = {"members": True}
maximum_signature_line_length = 80
python_use_unqualified_type_names = True
napoleon_use_ivar = True
napoleon_use_rtype = False
# A name between single backticks in a docstring is code.
default_role = "literal"

# The anchors of headings are those of code hosts.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
# A page may begin below a heading of the first level, as those of a code host do.
# A type such as BlockMap has a page in each package that exports it.
suppress_warnings = ["myst.header", "ref.python"]

html_theme = "furo"
html_title = "clearhead"
html_static_path = ["static"]
html_css_files = ["lesson.css"]
html_js_files = ["lesson.js"]
# The summaries of results are fetched, which a page from the disk may not do.
html_show_search_summary = False
html_show_sourcelink = False
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_theme_options = {
    "top_of_page_buttons": [],
    "light_css_variables": {"color-code-background": "#f2f4f6"},
    "dark_css_variables": {"color-code-background": "#2b2b2b"},
}
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"


def setup(app: Sphinx) -> None:
    # After the theme, which fills in the tree of contents at the usual priority, 500.
    app.connect("html-page-context", give_captions_a_level, priority=900)
    app.connect("doctree-read", mark_wide_pictures)


def mark_wide_pictures(app: Sphinx, tree: nodes.document) -> None:
    """A picture with letters that is wider than a phone keeps its size there, and is moved sideways."""
    for image in tree.findall(nodes.image):
        if image["uri"].endswith(".png"):
            image["classes"].append("ch-wide")


def give_captions_a_level(
    app: Sphinx, name: str, template: str, context: dict[str, Any], tree: object
) -> None:
    """The captions of the contents are headings, which to readers of screens need a level."""
    made = context.get("furo_navigation_tree", "")
    level = 'role="heading" aria-level="2"'
    context["furo_navigation_tree"] = made.replace('role="heading"', level)
