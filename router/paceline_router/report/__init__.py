"""What the router says of itself: metrics, timings, slow requests, traces, and the admin API."""
