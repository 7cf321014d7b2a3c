"""Text in and out: tokenizers, chat prompts, and text streaming. Heavy libraries are imported on first use."""

from jetspec_jax.text.chat import Message, Prompt, encode_prompt, is_batch, validate_messages
from jetspec_jax.text.streaming import IncrementalDetokenizer
from jetspec_jax.text.tokenizer import HFTokenizer, Tokenizer, load_tokenizer

__all__ = [
    "HFTokenizer",
    "IncrementalDetokenizer",
    "Message",
    "Prompt",
    "Tokenizer",
    "encode_prompt",
    "is_batch",
    "load_tokenizer",
    "validate_messages",
]
