"""A long mixed load on one replica, watched for what must not grow."""
