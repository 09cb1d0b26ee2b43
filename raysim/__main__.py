"""`python -m raysim` runs the command `raysim`, if no script is on the path."""

from raysim.cli.main import main

main()
