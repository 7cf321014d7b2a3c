"""How long the calls of a round keep the host."""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from jetspec_jax.language_model import LanguageModel

FEWEST = 4  # calls behind a median; programs called less often belong to no round


def dispatch_ms(model: LanguageModel, decode: Callable[[], Any]) -> dict[str, float]:
    """Median milliseconds by program, of those that rounds call.

    Args:
        model: whose programs are watched.
        decode: decodes something with it, warm.
    """
    executables, times = model.programs.executables, defaultdict(list)
    run = executables.run

    def timed(name: str, *args: Any, **how: Any) -> Any:
        began = time.perf_counter()
        outputs = run(name, *args, **how)
        times[name].append(1e3 * (time.perf_counter() - began))
        return outputs

    executables.run = timed
    try:
        decode()
    finally:
        executables.run = run
    # The first calls of a text find other buffers than the later ones.
    return {name: statistics.median(values[2:]) for name, values in times.items() if len(values) > FEWEST}
