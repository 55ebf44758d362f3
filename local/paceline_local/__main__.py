"""`python -m paceline_local` is `paceline local`."""

from paceline_local.commands import main

main()
