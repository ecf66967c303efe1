"""Lines of code of this repository: `python tests/support/code_lines.py [PART ...]`.

Blank lines, comments and docstrings do not count. Tables and scripts do, so that no rule hides in a YAML file.
"""

import ast
import io
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Texts and pictures are not code.
SKIPPED = {".png", ".svg", ".gif", ".md", ".txt", ".ipynb"}
COMMENT_MARKS = {".yaml": "#", ".yml": "#", ".toml": "#", ".js": "//"}
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def of_python(source: str) -> int:
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    return len(code.difference(*_docstrings(source)))


def _docstrings(source: str) -> Iterator[range]:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            text = node.body[0]
            yield range(text.lineno, (text.end_lineno or 0) + 1)


def of_file(path: Path) -> int:
    text = path.read_text(errors="replace")
    if path.suffix == ".py":
        return of_python(text)
    mark = COMMENT_MARKS.get(path.suffix)
    lines = filter(None, map(str.strip, text.splitlines()))
    return sum(mark is None or not line.startswith(mark) for line in lines)


def tracked(part: str) -> list[Path]:
    """Return the files that git tracks below a folder, or a single tracked file."""
    listed = subprocess.run(["git", "ls-files", part], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [ROOT / name for name in listed.splitlines()]
    return [path for path in paths if path.is_file() and path.suffix not in SKIPPED]


def of_part(part: str) -> int:
    return sum(map(of_file, tracked(part)))


if __name__ == "__main__":
    for part in sys.argv[1:] or ["verl_mas", "tests"]:
        print(f"{of_part(part):6} {part}")  # noqa: T201
