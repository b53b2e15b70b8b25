"""What is broken: a cluster of processes, its network, its certificates, its model."""
