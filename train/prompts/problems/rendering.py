"""How a problem looks: signature with or without types, docstring styles, kinds of examples, wording of the task."""

import re
import textwrap
from dataclasses import dataclass

from jetspec_jax.evaluation.public_schema import CODE_PROMPT
from train.prompts.problems.problem import Problem, Rng

MAX_EXAMPLE_CHARS, TRIES = 100, 12
TYPING_NAMES = ("Any", "Dict", "List", "Optional", "Tuple")
STUB_FORMS = (
    *[CODE_PROMPT] * 10,
    "Complete the following Python function.\n\n```python\n{}\n```",
    "Implement this function.\n\n```python\n{}\n```",
    "Please finish this Python code:\n\n```python\n{}\n```",
    "```python\n{}\n```\n\nComplete the function above.",
    "{}",
)
WORD_FORMS = (
    "Write a Python function `{signature}`. {text}",
    "{text} Write a Python function called `{name}` that does this.",
    "Can you write a Python function `{name}` for this task? {text}",
    "I need a Python function `{signature}`. {text} Explain how it works.",
)


@dataclass(frozen=True)
class Example:
    """A call and its result, both as Python source."""

    call: str
    arguments: tuple[str, ...]
    result: str


def draw_examples(problem: Problem, rng: Rng) -> list[Example]:
    """One to three examples, preferably with different results.

    Raises:
        ValueError: no short example was found, or all tries gave one result.
    """
    wanted = rng.choice((1, 2, 2, 3, 3))
    found: dict[str, Example] = {}
    results: set[str] = set()
    drawn = [tuple(param.sample(rng) for param in problem.params) for _ in range(TRIES)]
    for values in [*problem.examples, *drawn]:
        arguments = tuple(map(repr, values))
        result = repr(problem.solve(*values))
        example = Example(f"{problem.name}({', '.join(arguments)})", arguments, result)
        new = result not in results or (len(results) > 1 and rng.random() < 0.3)
        if len(example.call) + len(result) <= MAX_EXAMPLE_CHARS and new:
            found[example.call] = example
            results.add(result)
        if len(found) == wanted:
            break
    if len(found) < min(wanted, 2):
        raise ValueError(f"{problem.name}: examples are too long or all alike")
    return list(found.values())


def render(problem: Problem, rng: Rng) -> str:
    """A user message that asks for the function."""
    examples = draw_examples(problem, rng)
    if problem.helper or rng.random() < 0.8:
        return rng.choice(STUB_FORMS).replace("{}", stub(problem, examples, rng))
    text = sentences(problem, rng, with_given=True)
    shown = rng.choice(examples)
    text += rng.choice(
        (
            f" For example, `{shown.call}` should return `{shown.result}`.",
            f" Example: `{shown.call}` -> `{shown.result}`.",
            "",
        )
    )
    form = rng.choice(WORD_FORMS)
    return (
        form.replace("{signature}", signature(problem, rng, rng.choice(("none", "modern"))))
        .replace("{name}", problem.name)
        .replace("{text}", text)
        .strip()
    )


def stub(problem: Problem, examples: list[Example], rng: Rng) -> str:
    """Imports, helper, signature and docstring: what a completion task shows."""
    types = rng.choices(("typing", "modern", "bare", "none"), (50, 15, 10, 25))[0]
    head = signature(problem, rng, types)
    used = [name for name in TYPING_NAMES if re.search(rf"\b{name}\b", head)]
    parts = [f"from typing import {', '.join(used)}"] if used else []
    if problem.helper:
        parts.append(problem.helper)
    # A long list of arguments usually tells enough.
    body = sentences(problem, rng, with_given=rng.random() < 0.7)
    parts.append(f"def {head}:\n" + docstring(body, problem, examples, rng))
    return ("\n\n\n" if rng.random() < 0.8 else "\n\n").join(parts)


def signature(problem: Problem, rng: Rng, types: str) -> str:
    """`name(args) -> returns` with types as "typing" (List[int]), "modern" (list[int]), "bare" (list) or "none"."""

    def spelled(annotation: str) -> str:
        if types == "typing":
            return annotation
        inner = re.sub(r"Optional\[(\w+)\]", r"\1 | None", annotation)
        inner = re.sub(r"\b(List|Dict|Tuple)\b", lambda match: match[1].lower(), inner)
        return inner if types == "modern" else inner.split("[")[0].split(" |")[0]

    if types == "none":
        return f"{problem.name}({', '.join(param.name for param in problem.params)})"
    arguments = ", ".join(f"{param.name}: {spelled(param.annotation)}" for param in problem.params)
    returns = "" if types == "bare" and rng.random() < 0.5 else f" -> {spelled(problem.returns)}"
    return f"{problem.name}({arguments}){returns}"


def sentences(problem: Problem, rng: Rng, *, with_given: bool) -> str:
    """The task in plain English, in one of several openings, and the notes."""
    task, given = problem.task, problem.given
    extra = [f"`{param.name}`" for param in problem.params[1:] if f"`{param.name}`" not in given]
    if extra:
        given += " and " + " and ".join(extra)
    openings = [_sentence(task)]
    if with_given or f"`{problem.params[0].name}`" not in task:
        openings = [
            f"Given {given}, {task}.",
            f"Given {given}, {task}.",
            f"You are given {given}. {_sentence(task)}",
            f"You're given {given}. Your task is to {task}.",
            f"The function gets {given} and {_third_person(task)}.",
            f"{_sentence(task)} The input is {given}.",
            f"This function takes {given} and {_third_person(task)}.",
        ]
    text = " ".join([rng.choice(openings), *problem.notes])
    return text.replace("`", "") if rng.random() < 0.6 else text


def docstring(body: str, problem: Problem, examples: list[Example], rng: Rng) -> str:
    """The docstring, indented, with its examples in one of several styles."""
    quote = "'''" if rng.random() < 0.12 else '"""'
    style = rng.choices(("doctest", "calls", "sides"), (60, 30, 10))[0]
    width = rng.choice((76, 88, 96, 100))
    lines = textwrap.wrap(body, width)
    if style == "doctest":
        shown = [line for example in examples for line in (f">>> {example.call}", *_result(example))]
        lines += ([""] if rng.random() < 0.3 else []) + shown
    elif style == "calls":
        arrow = rng.choice(("==>", "=>", "->", "==", "should return", "➞", "returns"))
        title = rng.choice(("Examples:", "For example:", "Example:", "Examples", "", "e.g."))
        bullet = rng.choice(("", "", "* ", "  "))
        lines += ["", *([title] if title else []), *[f"{bullet}{e.call} {arrow} {e.result}" for e in examples]]
    else:
        for number, example in enumerate(examples, 1):
            given = ", ".join(f"{p.name} = {a}" for p, a in zip(problem.params, example.arguments, strict=True))
            lines += ["", f"Example {number}:", f"    Input: {given}", f"    Output: {example.result}"]
    indented = [("    " + line).rstrip() for line in lines]
    opening = rng.random()
    if opening < 0.35:
        return "\n".join([f"    {quote}", *indented, f"    {quote}"])
    indented[0] = f"    {quote}{' ' if opening < 0.65 else ''}{lines[0]}"
    return "\n".join([*indented, f"    {quote}"])


def _result(example: Example) -> list[str]:
    return [] if example.result == "None" else [example.result]


def _sentence(task: str) -> str:
    return task[0].upper() + task[1:] + "."


def _third_person(task: str) -> str:
    verb, _, rest = task.partition(" ")
    if verb in ("for", "among"):  # no verb in front
        return f"works like this: {task}"
    parts = re.split(r"(, then |, and return |; return | and return | and leave )", rest)
    return f"{verb}s " + "".join(map(_follow, parts))


def _follow(part: str) -> str:
    return (
        part.replace(" return ", " returns ").replace(" leave ", " leaves ")
        if part.startswith((",", ";", " and"))
        else part
    )
