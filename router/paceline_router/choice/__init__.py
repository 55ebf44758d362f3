"""Which replica: what is known of each one's load, where a prefix lies, and the cost that decides between them."""
