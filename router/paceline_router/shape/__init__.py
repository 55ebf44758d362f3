"""What kind of request this is: length in, length out, structure; learned per tenant, route and prompt version."""
