"""Measurements, each with its command, device and versions; results are in `results/`."""
