"""What copies of requests cost those who are served, with candidates that fail in every way."""
