"""Chat templates rendered the way transformers renders them: same sandbox, same globals, same filters.

For tokenizers that do not come from transformers (GGUF). A checkpoint folder is rendered by transformers itself, which
takes 1.5 s to import; only `check_template_kwargs` is used for both.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.sandbox


def check_template_kwargs(source: str, template_kwargs: Mapping[str, Any]) -> None:
    """Refuse arguments that the chat template never mentions; they would be ignored without a word."""
    _, variables = _compile(source)
    if unknown := sorted(set(template_kwargs) - variables):
        raise ValueError(f"the chat template does not use {', '.join(unknown)}; it uses {', '.join(sorted(variables))}")


def render_template(
    source: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool,
    special_tokens: Mapping[str, str],
    template_kwargs: Mapping[str, Any],
) -> str:
    """The chat as text, as transformers renders it. `special_tokens` are `bos_token`, `eos_token` and so on."""
    check_template_kwargs(source, template_kwargs)
    template, _ = _compile(source)
    # transformers drops keys without a value and always defines tools and documents.
    plain = [{key: value for key, value in message.items() if value is not None} for message in messages]
    defaults = {"tools": None, "documents": None, "add_generation_prompt": add_generation_prompt, **special_tokens}
    try:
        return template.render({**defaults, **template_kwargs, "messages": plain})
    except jinja2.TemplateError as error:
        raise ValueError(f"the chat template refused the messages: {error}") from error


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks text for training masks; here it is only a block with its own scope."""

    tags: ClassVar[set[str]] = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body).set_lineno(line)


@functools.lru_cache(maxsize=16)
def _compile(source: str) -> tuple[Any, frozenset[str]]:
    """The compiled template and the names of the variables it reads."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    try:
        variables = jinja2.meta.find_undeclared_variables(environment.parse(source))
        return environment.from_string(source), frozenset(variables)
    except jinja2.TemplateError as error:
        raise ValueError(f"the chat template cannot be parsed: {error}") from error


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML characters, which would change the prompt."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
