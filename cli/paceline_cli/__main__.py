"""`python -m paceline_cli`."""

from paceline_cli.main import main

main()
