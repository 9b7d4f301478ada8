"""What simulations of ledgers and of streams share: a cluster, the hosts of its clients, and the faults of both."""
