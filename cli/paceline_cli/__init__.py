"""`paceline`, also `kubectl paceline`: every command, each importing its component only when called."""
