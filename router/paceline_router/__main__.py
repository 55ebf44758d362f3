"""`python -m paceline_router`."""

from paceline_router.commands import app

if __name__ == "__main__":
    app(prog_name="paceline route")
