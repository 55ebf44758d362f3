"""`paceline bench fleet`: what an operator costs at the size of a fleet, on a real API server."""
