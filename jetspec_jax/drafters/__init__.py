"""Drafters: one protocol, any of them gives the same text."""

from jetspec_jax.drafters.autoregressive import AutoregressiveDrafter
from jetspec_jax.drafters.jetspecpp import PLAIN_PASS, JetSpecPP
from jetspec_jax.drafters.naming import DRAFTER_NAMES, as_drafter
from jetspec_jax.drafters.ngram import NgramDrafter
from jetspec_jax.drafters.predictor import AdapterPredictor, Predictor
from jetspec_jax.drafters.protocol import Drafter, DraftView, StatelessDrafter
from jetspec_jax.drafters.traceable import CallableDrafter

__all__ = [
    "DRAFTER_NAMES",
    "PLAIN_PASS",
    "AdapterPredictor",
    "AutoregressiveDrafter",
    "CallableDrafter",
    "DraftView",
    "Drafter",
    "JetSpecPP",
    "NgramDrafter",
    "Predictor",
    "StatelessDrafter",
    "as_drafter",
]
