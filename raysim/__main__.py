"""`python -m raysim`: the command, where no script is on the path."""

from raysim.cli.main import main

main()
