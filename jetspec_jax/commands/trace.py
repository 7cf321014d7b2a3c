"""How each verified block was refined, as tables: the passes, what the decoder changed between them, the verdict.

The paper's Figure 4 for real text. Every mark is a sign, so that nothing is lost without colour.
"""

import unicodedata
from collections.abc import Callable, Iterator

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from jetspec_jax.decoding.round_trace import RoundTrace
from jetspec_jax.drafting_config import DraftingConfig
from jetspec_jax.language_model import LanguageModel
from jetspec_jax.outputs import GenerationOutput
from jetspec_jax.sampling_params import SamplingParams
from jetspec_jax.text.blocks import ACCEPTED_STYLE, OWN_STYLE
from jetspec_jax.text.tokenizer import Tokenizer

# Sign and style of a cell; the sign stands before the token's text.
Mark = tuple[str, str]
Cell = tuple[int | None, Mark]  # no token: an empty cell
PLAIN: Mark = (" ", "")
SETTLED: Mark = ("=", "dim")
AGREED: Mark = ("=", "cyan")
REPLACED: Mark = ("!", "bold yellow")
UNUSED: Mark = ("~", "dim")
REDRAFTED: Mark = (" ", "blue")
CHANGED: Mark = ("+", "bold blue")
ACCEPTED: Mark = ("✓", ACCEPTED_STYLE)
OWN: Mark = ("✗", OWN_STYLE)
EMPTY: Cell = (None, PLAIN)

# Row by row what its signs mean.
LEGEND = (
    ("refresh", ((AGREED, "agreed"), (REPLACED, "the decoder's token, written"), (UNUSED, "the decoder's, not used"))),
    ("pass", ((SETTLED, "settled"), (CHANGED, "changed"))),
    ("target", ((ACCEPTED, "accepted"), (OWN, "the target's own token"))),
)

_LABEL_WIDTH = len("refresh 1")
_MIN_CELL, _MAX_CELL = 6, 12  # a sign and some text
_VISIBLE = {" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍"}


def stream_traces(
    model: LanguageModel, prompt, params: SamplingParams, template_kwargs, console: Console
) -> tuple[GenerationOutput, list[RoundTrace]]:
    """Generates one prompt, printing a table per round; the text comes after them."""
    traces: list[RoundTrace] = []
    output = None
    piece_of = token_pieces(model.tokenizer)
    for chunk in model.stream(prompt, params, chat_template_kwargs=template_kwargs):
        output = chunk.output or output
        if chunk.trace is not None:
            traces.append(chunk.trace)
            options = {"drafting": model.drafter.drafting, "piece_of": piece_of, "width": console.width}
            console.print(trace_tables(chunk.trace, len(traces), **options))
    console.print(legend())
    console.rule()
    console.print(output.text, markup=False, soft_wrap=True)
    return output, traces


def legend() -> Text:
    """What the signs mean, a line for each kind of row."""
    lines = []
    for label, marks in LEGEND:
        meanings = Text("   ").join(Text(f"{sign} {meaning}", style) for (sign, style), meaning in marks)
        lines.append(Text.assemble(label.ljust(_LABEL_WIDTH + 1), meanings))
    return Text("\n").join(lines)


def token_pieces(tokenizer: Tokenizer | None) -> Callable[[int], str]:
    """A function from a token id to a short visible text: `·` for a blank, `⏎` for a newline, `∅` for no token.

    A token without text is shown by its id.
    """

    def piece_of(token_id: int) -> str:
        if token_id < 0:
            return "∅"
        if tokenizer is None:
            return str(token_id)
        alone = tokenizer.decode([token_id], skip_special_tokens=False)
        # Some tokenizers strip the blank of a text's first token; the second one keeps it.
        twice = tokenizer.decode([token_id, token_id], skip_special_tokens=False)
        return visible(twice[len(alone) :] if twice.startswith(alone) else alone) or f"<{token_id}>"

    return piece_of


def visible(text: str) -> str:
    """The text with what cannot be seen, or would move the cursor, written as a sign."""
    return "".join(
        _VISIBLE.get(char) or ("?" if unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp") else char) for char in text
    )


def trace_tables(
    trace: RoundTrace,
    number: int,
    *,
    drafting: DraftingConfig,
    piece_of: Callable[[int], str],
    width: int = 80,
) -> Group:
    """One round: a column per position of the block, a row per pass and refresh, and the target's verdict.

    Blocks too long for the width are split into tables below each other.

    Args:
        trace: what happened.
        number: the round's, from 1.
        drafting: how it was drafted.
        piece_of: text of a token.
        width: columns of the terminal.
    """
    block_len = len(trace.passes[0])
    per_table = max(1, (width - _LABEL_WIDTH) // (_MIN_CELL + 1))
    per_table = -(-block_len // -(-block_len // per_table))  # the same number in each
    cell = min(_MAX_CELL, (width - _LABEL_WIDTH) // per_table - 1)
    rows = list(_rows(trace, _num_made(trace, number, drafting)))
    parts: list[RenderableType] = [Text(_title(trace, number, drafting, piece_of), "bold")]
    for start in range(0, block_len, per_table):
        table = Table(box=SIMPLE_HEAD, show_edge=False, padding=0)
        table.add_column("position", width=_LABEL_WIDTH, no_wrap=True)
        for position in range(start, min(start + per_table, block_len)):
            table.add_column(f" {position + 1}", width=cell, no_wrap=True)
        for label, cells in rows:
            table.add_row(label, *[_text(piece_of, *entry, cell) for entry in cells[start : start + per_table]])
        parts += [table, Text()]
    return Group(*parts)


def _title(trace: RoundTrace, number: int, drafting: DraftingConfig, piece_of: Callable[[int], str]) -> str:
    block_len = len(trace.passes[0])
    if drafting.num_outcomes == 0:
        origin = "drafted on the critical path"
    elif number == 1:
        origin = "first block"
    else:
        origin = "hit" if trace.is_hit else "miss"
    title = f"round {number} · {origin} · accepted {trace.num_accepted} of {block_len}"
    # The token after a whole accepted block has no column.
    return title + (f", then {piece_of(trace.committed[-1])}" if trace.num_accepted == block_len else "")


def _num_made(trace: RoundTrace, number: int, drafting: DraftingConfig) -> int:
    """Passes after pass 0 that were made: a block drafted late may have fewer than its trace has room for."""
    is_prepared = trace.is_hit or (number > 1 and drafting.miss_policy == "soft_miss")
    config = drafting.refine if is_prepared or drafting.num_outcomes == 0 else drafting.fallback
    return config.num_passes


def _rows(trace: RoundTrace, num_made: int) -> Iterator[tuple[str, list[Cell]]]:
    """Labels and cells, from pass 0 to the verdict."""
    yield "pass 0", [(token, PLAIN) for token in trace.passes[0]]
    for index in range(1, num_made + 1):
        before, after, num_fixed = trace.passes[index - 1], trace.passes[index], trace.num_fixed[index]
        if index <= len(trace.proxies):
            proxy, num_settled = trace.proxies[index - 1], trace.num_fixed[index - 1]
            yield f"refresh {index}", list(_refresh(before, proxy, num_settled, num_fixed))
        yield f"pass {index}", list(_pass(before, after, num_fixed))
    yield "target", list(_verdict(trace))


def _refresh(before, proxy, num_settled: int, num_fixed: int) -> Iterator[Cell]:
    """What the decoder says; it is not asked about what had been settled."""
    for offset, (token, decoded) in enumerate(zip(before, proxy, strict=True)):
        if offset < num_settled:
            yield EMPTY
        elif offset < num_fixed:
            yield decoded, AGREED if decoded == token else REPLACED
        else:
            yield decoded, UNUSED


def _pass(before, after, num_fixed: int) -> Iterator[Cell]:
    for offset, (old, new) in enumerate(zip(before, after, strict=True)):
        if offset < num_fixed:
            yield new, SETTLED
        else:
            yield new, REDRAFTED if new == old else CHANGED


def _verdict(trace: RoundTrace) -> Iterator[Cell]:
    for offset in range(len(trace.passes[0])):
        if offset < trace.num_accepted:
            yield trace.committed[offset], ACCEPTED
        elif offset == trace.num_accepted:
            yield trace.committed[offset], OWN
        else:
            yield EMPTY


def _text(piece_of: Callable[[int], str], token: int | None, mark: Mark, width: int) -> Text:
    if token is None:
        return Text()
    sign, style = mark
    text = Text(sign + piece_of(token), style)
    text.truncate(width, overflow="ellipsis")
    return text
