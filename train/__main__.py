"""`python -m train`."""

from train.cli import main

main()
