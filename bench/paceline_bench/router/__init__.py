"""What the router costs, loses and shares: CPU beside peers, faults under load, tenants, the choice of replicas."""
