"""Fails if a comment cannot be read alone; `python scripts/check_comments.py [root]`.

A comment starts with a verb ("Returns") or a full noun phrase ("Bytes of one thread's scratch").
Words that point to a sentence elsewhere or start a clause without a noun are refused: the first
words of each run of comment lines, of each comment after code and of each docstring are checked.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

from source_files import CPP_SUFFIXES, PYTHON_SUFFIXES, is_generated, list_files, run_check

# First words that are refused, each as a regular expression.
REFUSED = re.compile(
    r"(What|Of|The same|Those|Whether (?:they are|it is)(?=[.,:;]|$)"
    r"|(?:As|Likewise|Ditto|Same)(?=[.,:;]|$)|As (?:above|before|below))(?![\w'])"
)
HINT = 'start with a verb ("Returns") or a full noun phrase ("Bytes of one thread\'s scratch")'

# Literals of C++ hide what looks like a comment, and comments hide what looks like a literal.
_CPP_TOKEN = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<mark>[^()\s\\]*)\(.*?\)(?P=mark)"'
    r"|\"(?:\\.|[^\"\\\n])*\"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'",
    re.DOTALL,
)
# Decoration of a comment: its slashes and stars, and the "<" of a comment after code.
_CPP_MARKS = re.compile(r"/\*[*!]?<?|//[/!]?<?")

# A comment by its position: line and column (from 0), whether code precedes it, its text.
Comment = tuple[int, int, bool, str]


def cpp_comments(text: str) -> Iterator[Comment]:
    """Yield each comment of C++ source `text`, one per line for `//`."""
    for match in _CPP_TOKEN.finditer(text):
        if not match.group().startswith("/"):
            continue
        start = text.rfind("\n", 0, match.start()) + 1
        after_code = bool(text[start : match.start()].strip())
        words = _CPP_MARKS.sub("", match.group(), count=1).removesuffix("*/").strip(" *\n")
        yield text.count("\n", 0, start) + 1, match.start() - start, after_code, words


def python_comments(text: str) -> Iterator[Comment]:
    """Yield each comment of Python source `text`, one per line."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            line, column = token.start
            words = token.string.lstrip("#:! ").strip()
            yield line, column, bool(token.line[:column].strip()), words


def docstrings(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each docstring of Python source `text`."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        found = ast.get_docstring(node)
        if found is not None:
            yield node.body[0].lineno, found.lstrip()


def first_lines(comments: Iterator[Comment]) -> Iterator[tuple[int, str]]:
    """Yield line and text where a comment begins, without the lines that continue it.

    A line of its own continues the comment of the line before if it has the same column.
    """
    previous_line, previous_column = -1, -1
    for line, column, after_code, words in comments:
        if after_code or line != previous_line + 1 or column != previous_column:
            yield line, words
        previous_line, previous_column = line, column


def check_text(path: Path, text: str) -> list[str]:
    """Return a message for each comment of source `text` that cannot be read alone."""
    if path.suffix in CPP_SUFFIXES:
        found = list(first_lines(cpp_comments(text)))
    elif path.suffix in PYTHON_SUFFIXES:
        found = sorted([*first_lines(python_comments(text)), *docstrings(text)])
    else:
        return []
    return [
        f'{path}:{line}: comment starts with "{match.group(1)}"; {HINT}'
        for line, words in found
        if (match := REFUSED.match(words))
    ]


def check_tree(root: Path) -> list[str]:
    """Return a message for each comment under `root` that cannot be read alone."""
    problems = []
    for path in list_files(root):
        if path.suffix in CPP_SUFFIXES | PYTHON_SUFFIXES:
            text = path.read_text(encoding="utf-8")
            if not is_generated(text):
                problems += check_text(path.relative_to(root), text)
    return problems


if __name__ == "__main__":
    sys.exit(run_check(check_tree, sys.argv[1:]))
