"""`python -m paceline_shadow_traffic`: the recorder."""

from paceline_shadow_traffic.recorder.commands import app

if __name__ == "__main__":
    app(prog_name="paceline-recorder")
