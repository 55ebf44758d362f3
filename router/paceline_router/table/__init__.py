"""What exists: services, revisions and replicas, from the cluster or a file, and the routes made of them."""
