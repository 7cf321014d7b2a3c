"""Prompts for training: conversations, generated maths, code tasks and code prompts. Entry: `collect.py`."""
