"""`python -m maskplan` is the command line, `maskplan`."""

from maskplan.cli import main

main()
