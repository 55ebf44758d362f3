"""One process per system under test, in the Python where that system is installed.

`main.py` runs there as a script and needs the standard library only; `on_SYSTEM.py` drives the system. What the
benchmark says to it and hears from it is one JSON object per line.
"""
