"""The settings of the documentation site: `make docs` builds it into build/docs."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "docs" / "_ext"), str(ROOT), str(ROOT / "src")]

from atlas import __version__  # noqa: E402

project = "ATLAS"
author = "ATLAS contributors"
copyright = "ATLAS contributors, MIT licence"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "generated"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
default_role = "code"  # docstrings have single backticks
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 90

html_theme = "furo"
html_title = f"ATLAS {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
templates_path: list[str] = []
exclude_patterns = ["_ext"]
