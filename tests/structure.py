"""The structure in numbers: `python -m tests.structure` prints code lines, files, arrows and private terms.

A private term is a word of ours for something that Ray, PyTorch, MLflow or the papers have a word for. `PRIVATE_TERMS`
maps each to the word that the repository uses; `tests/test_structure.py` allows none.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]

PRIVATE_TERMS = {
    r"commits|committed": "checkpoints, saved (a commit is git's)",
    r"keeper": "CheckpointManager",
    r"survivor": "RecoveringBackend",
    r"crew": "ActorPool",
    r"hello|hellos": "registration",
    r"settle|settles|settled": "wait, fsync, drain or mark_saved",
    r"thaw|thawed": "deserialize",
    r"world": "Plan",
    r"elastic": "oversubscribable",
    r"seats|seated|seating|unseated": "placement",
    r"hurry|impatient": "deadline",
    r"obituary": "failure message",
    r"litter": "orphan files",
    r"outbox": "Broadcast",
    r"ledger": "ClientStats",
    r"misfit|misfits": "incompatibility",
    r"unheard": "without callbacks",
    r"somebody|nobody|whoever|everybody": "the actor, the user, no client ...: name the subject",
    r"again\.py|bring_up": "resume.py, backend_factory.py",
    r"OwnData|_Audience|HostActor|ClientHost|ServerHost|RunCrew": "DatasetHandle, Observers, ClientActor, ClientWorker",
    r"(?:had|has|its|first|a|of) turns?|turn_s|\w+_per_turn": "client round",
    r"obeys|mortal": "killable",
}
"""Regular expression of whole words -> what to say."""

EXEMPT = {Path("tests/structure.py"), Path("CHANGELOG.md")}
LISTED = [
    "raysim", "algorithms", "examples", "tests", "benchmarks", "cluster", "scenarios", "docs",
    "README.md", "CONTRIBUTING.md",
]  # fmt: skip


def files(*suffixes: str) -> list[Path]:
    """The repository's own files with these suffixes, relative to it."""
    found = []
    for name in LISTED:
        place = REPOSITORY / name
        paths = place.rglob("*") if place.is_dir() else [place]
        found += [path.relative_to(REPOSITORY) for path in paths if path.suffix in suffixes and path.is_file()]
    return sorted(set(found) - EXEMPT)


def code_lines(path: Path) -> int:
    """Lines that hold code: no blank lines, comments or docstrings."""
    source = (REPOSITORY / path).read_text()
    documentation: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node, clean=False):
            first = node.body[0]
            documentation |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    skipped = {
        tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
    }  # fmt: skip
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in skipped:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - documentation)


def imports(path: Path) -> set[str]:
    """Modules that a file imports, inside functions, too; of `from a import b` both a and a.b."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((REPOSITORY / path).read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def private_terms() -> Iterator[tuple[Path, int, str, str]]:
    """(file, line, word, what to say instead) of every private term in code, comments and documents."""
    rules = [
        (re.compile(rf"(?<![A-Za-z])(?:{term})(?![A-Za-z])", re.IGNORECASE), say) for term, say in PRIVATE_TERMS.items()
    ]
    any_term = re.compile(rf"(?<![A-Za-z])(?:{'|'.join(PRIVATE_TERMS)})(?![A-Za-z])", re.IGNORECASE)
    for path in files(".py", ".md", ".yaml"):
        for number, line in enumerate((REPOSITORY / path).read_text().splitlines(), 1):
            for rule, say in rules if any_term.search(line) else ():
                for match in rule.finditer(line):
                    yield path, number, match[0], say


def main() -> None:
    """Print the table."""
    lines: Counter[str] = Counter()
    count: Counter[str] = Counter()
    sources = [path for path in files(".py") if path.parts[0] in ("raysim", "algorithms")]
    for path in sources:
        package = "/".join(path.parts[: min(len(path.parts) - 1, 2)])
        lines[package] += code_lines(path)
        count[package] += 1
    for package in sorted(lines):
        print(f"{package:<22}{lines[package]:>7} code lines in {count[package]:>3} files")
    print(f"{'all':<22}{sum(lines.values()):>7} code lines in {sum(count.values()):>3} files")
    modules = {".".join(path.with_suffix("").parts): path for path in sources if path.parts[:2] == ("raysim", "engine")}
    arrows = sum(len(imports(path) & modules.keys() - {name}) for name, path in modules.items())
    print(f"arrows inside engine: {arrows}")
    ray = [str(path) for path in sources if any(name.split(".")[0] == "ray" for name in imports(path))]
    print(f"files that import ray: {len(ray)} ({', '.join(ray)})")
    terms = Counter(word.lower() for _, _, word, _ in private_terms())
    print(f"private terms: {sum(terms.values())} {dict(terms.most_common())}")


if __name__ == "__main__":
    main()
