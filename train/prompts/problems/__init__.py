"""Small Python problems made from parts: what to do with which values, told in many ways. Entry: `functions.py`."""
