"""Recipes that train a draft, an adapter and their calibration for a target: `python -m train <stage>`."""
