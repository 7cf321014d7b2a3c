"""Prompts for whoever brings none: of the demo, and of `bench` without a prompt."""

# Prose, which is hard to draft, code, which is easier, and a text to repeat.
SAMPLE_PROMPTS = (
    "Why is the sky blue? Answer in two sentences.",
    "Write a Python function that returns the n-th Fibonacci number.",
    "Repeat the following text word for word:\n\nThe old lighthouse keeper climbed the winding stairs every evening. "
    "He lit the lamp, wiped the glass, and watched the ships pass by. Every morning the old lighthouse keeper "
    "climbed down the winding stairs again, and slept until noon.",
)
