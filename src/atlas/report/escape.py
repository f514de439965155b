"""Text of a run folder, made harmless for what reads it next. HTML is escaped by the page's template."""

from __future__ import annotations

import re

from atlas.terminal import one_line

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet takes for the start of a formula."""
NEGATIVE = re.compile(r"-\d+(\.\d+)?([eE][+-]?\d+)?%?")
LATEX = {
    **{char: f"\\{char}" for char in "&%$#_{}"},
    **{char: f"{{{char}}}" for char in "[]*"},  # after a line's end they would be its options
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\char34{}",  # its name is not known in LaTeX's own encoding
    "`": r"\textasciigrave{}",
    "†": r"\textdagger{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "²": r"\textsuperscript{2}",
    "ε": r"$\varepsilon$",
    "α": r"$\alpha$",
    "β": r"$\beta$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "∞": r"$\infty$",
    "−": r"$-$",
    "–": "--",
    "→": r"$\rightarrow$",
}


def markdown(text: str) -> str:
    """Text as itself within a line of Markdown or a cell of its tables."""
    text = one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|~$])", r"\\\1", text)


def latex(text: str) -> str:
    """Text as itself in LaTeX; what has no ASCII form is left to a Unicode engine."""
    return "".join(LATEX.get(char, char) for char in one_line(text))


def csv(text: str) -> str:
    """Text that a spreadsheet shows and does not run; a number such as -1.5 stays one.

    Lines stay, but for a terminal that shows the file no other control character does.
    """
    text = "".join(char if char in "\t\n\r" else one_line(char) for char in text)
    harmless = not (text.startswith(FORMULA) or text.lstrip().startswith(FORMULA))
    return text if harmless or NEGATIVE.fullmatch(text) else f"'{text}"
