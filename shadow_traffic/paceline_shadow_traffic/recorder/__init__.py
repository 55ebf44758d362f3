"""The recorder: takes pairs of answers from routers, compares them, and keeps what came out of it for a while."""
