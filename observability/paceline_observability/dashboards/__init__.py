"""Grafana boards: the fleet, one service, one rollout. Units and descriptions of panels come from the catalogue.

The committed copies in the chart are written by `python -m paceline_observability.dashboards --write ROOT`.
"""

from .board import Board as Board
from .board import Panel as Panel
from .board import concrete as concrete
from .boards import BOARDS as BOARDS
