#!/usr/bin/env python3
"""Counts the clients' lines of code, without blank lines, comments and docstrings, counted alike in all languages.

Prints a table: the lock itself, what builds on it (elections, quorums, adapters, test doubles, declarations of types), and the tests.
Fails if files of a client import each other in a circle.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent

# Each language: where its sources are, which of them build on the lock, and which are tests. The first pattern that fits decides.
NEITHER = re.compile(r"/(bench|failover|example|examples|outside|boot)/|/(bench|failover)\.|/build\.mjs$|eslint|/tools/|^csharp/|^ruby/|^cli/|^cases/|/lines\.py$")
TESTS = re.compile(r"/tests?/|_test\.go$|/test_[^/]*\.py$|/conftest\.py$|/stage\.py$|/redis_suite\.py$|^rust/tests/")
ABOVE = re.compile(
    r"election|leader|Leader|Election|quorum|Quorum|redis_lock|redlock|fakes|Fake|gocron|/starter/|/shedlock/|Laravel|Symfony|\.d\.mts$",
)
ENDS = {".py": "Python", ".mjs": "Node", ".mts": "Node", ".cts": "Node", ".ts": "Node", ".go": "Go", ".java": "Java", ".rs": "Rust", ".php": "PHP"}


def python_lines(text: str) -> int:
    """Returns the number of lines of a Python source that have code."""
    docs: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and ast.get_docstring(node) is not None:
            docs.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(1 for at, line in lines if at not in docs and line.strip() and not line.lstrip().startswith("#"))


def other_lines(text: str) -> int:
    """Returns the number of lines that have code, of a source whose comments are // and /* */."""
    text = re.sub(r"^[ \t]*/\*.*?\*/[ \t]*$", "", text, flags=re.DOTALL | re.MULTILINE)
    return sum(1 for line in text.splitlines() if line.strip() and not line.lstrip().startswith("//"))


# Where sources are, and what one says of another. Java's and Go's are one package each, whose files name each other freely.
IMPORTS = {
    "python/src/dlock_redis/*.py": r"^\s*from \.(\w+) import|^\s*from \. import (\w+)",
    "node/src/*.mjs": r"from '\./(\w+)\.mjs'",
    "rust/src/*.rs": r"crate::(\w+)::",
    "cli/src/*.rs": r"\b(\w+)::",
    "php/src/**/*.php": r"\b([A-Z]\w+)\b",
}
PAIRS = {("php", "Core", "Hold")}  # a hold asks the core, which keeps it


def circles() -> set[tuple[str, ...]]:
    """Returns the files that import each other in a circle, by client."""
    found = set()
    for where, pattern in IMPORTS.items():
        texts = {path.stem: path.read_text() for path in HERE.glob(where)}
        words = r"/\*.*?\*/|//[^\n]*|\"[^\"\n]*\"" + (r"|'[^'\n]*'" if where.startswith("php") else "")
        reached = {}
        for name, text in texts.items():
            matches = re.findall(pattern, re.sub(words, "", text, flags=re.DOTALL), re.MULTILINE)
            reached[name] = {"".join(match) for match in matches} & texts.keys() - {name}
        for middle in texts:
            for name in texts:
                if middle in reached[name]:
                    reached[name] |= reached[middle]
        for name in texts:
            if name in reached[name]:
                found.add((where.split("/")[0], *sorted(one for one in reached[name] if name in reached[one])))
    return found - PAIRS


def main() -> None:
    """Prints the table, and what imports each other."""
    listed = subprocess.run(["git", "ls-files", "."], cwd=HERE, check=True, capture_output=True, text=True).stdout.split()
    counts = {language: [0, 0, 0] for language in dict.fromkeys(ENDS.values())}
    for name in listed:
        language = ENDS.get(Path(name).suffix)
        if language is None or NEITHER.search(name):
            continue
        text = (HERE / name).read_text()
        column = 2 if TESTS.search(name) else 1 if ABOVE.search(name) else 0
        counts[language][column] += python_lines(text) if language == "Python" else other_lines(text)
    total = [sum(column) for column in zip(*counts.values())]
    print(f"{'':8} {'the lock':>10} {'above it':>10} {'tests':>10}")
    for language, row in [*counts.items(), ("all", total)]:
        print(f"{language:8} " + " ".join(f"{count:>10,}" for count in row))
    if wrong := circles():
        sys.exit("\n".join(f"{language}: these import each other: {', '.join(names)}" for language, *names in sorted(wrong)))


if __name__ == "__main__":
    main()
