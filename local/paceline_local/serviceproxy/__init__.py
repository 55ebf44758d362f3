"""The Service proxy: gives every Service a stable loopback address and follows its ready pods."""
