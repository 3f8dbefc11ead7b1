"""How the book is built: ``make docs`` runs Sphinx on this folder, and every warning is an error."""

import datetime
import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_book"))

import sources

import coalmine

project = "Coalmine"
author = "The Coalmine authors"
project_copyright = f"{datetime.date.today().year}, {author}"
version = release = coalmine.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "made",  # what is made when the book is built: commands, config, gallery
]
exclude_patterns = ["_book", "images/*.py"]
nitpicky = True
# Names of other packages, which have books of their own, and private ones; all else must be found.
nitpick_ignore_regex = [("py:.*", r"(?!coalmine\b).*"), ("py:.*", r"coalmine\..*\b(_\w+|SectionKind)")]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
nb_execution_mode = "cache"
os.environ["JUPYTER_PATH"] = str(HERE / "_book" / "jupyter")  # a kernel of this Python that says nothing but errors
nb_execution_cache_path = str(HERE.parent / "build" / "docs-cache" / sources.digest())
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_execution_in_temp = True
nb_merge_streams = True
nb_output_stderr = "remove"  # progress bars, and what other packages warn of

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
maximum_signature_line_length = 100
add_module_names = False
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True

html_theme = "pydata_sphinx_theme"
html_title = "Coalmine"
html_static_path = ["_static"]
html_css_files = ["book.css"]
html_show_sourcelink = False
html_sidebars = {"index": [], "start": [], "gallery": []}
smartquotes = False  # -- begins an option
html_theme_options = {
    "navigation_with_keys": False,
    "header_links_before_dropdown": 8,
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": [],
    "navbar_persistent": ["search-button"],
    "navbar_end": ["theme-switcher"],
    "secondary_sidebar_items": ["page-toc"],
}
