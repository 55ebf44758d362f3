"""The endpoint picker: a gateway carries the bytes, and asks here which replica a request goes to."""
