"""Public test kit: tiny targets, a target with a known law, drafters that follow a script,
stand-ins for trained drafting weights, a byte tokenizer.
"""

from jetspec_jax.testing.byte_tokenizer import ByteTokenizer
from jetspec_jax.testing.checkpoint import write_tiny_checkpoint
from jetspec_jax.testing.drafters import NoisyDrafter, ScriptedDrafter, random_drafter
from jetspec_jax.testing.foresight import KnownOutcomes, OraclePredictor, PeekingJetSpecPP, PeekingPredictor
from jetspec_jax.testing.table_target import TableTarget, counting_target
from jetspec_jax.testing.tiny import tiny_config, tiny_target

__all__ = [
    "ByteTokenizer",
    "KnownOutcomes",
    "NoisyDrafter",
    "OraclePredictor",
    "PeekingJetSpecPP",
    "PeekingPredictor",
    "ScriptedDrafter",
    "TableTarget",
    "counting_target",
    "random_drafter",
    "tiny_config",
    "tiny_target",
    "write_tiny_checkpoint",
]
