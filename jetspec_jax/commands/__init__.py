"""The commands of `jetspec`, one file each; `cli.py` parses, these run."""
