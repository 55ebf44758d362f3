"""The alerts: few, static, and the same for every service, since they join on what the operator exports.

`rules` says what they are, `file` makes the file of Prometheus and the routing of Alertmanager of them. The committed
copies in the chart are written by `python -m paceline_observability.alerts --write ROOT`.
"""

from .file import ROUTING as ROUTING
from .file import rule_file as rule_file
from .rule import Alert as Alert
from .rule import Windows as Windows
from .rules import alerts as alerts
