"""What a run needs of GPUs, hosts and disks, estimated from its configuration before anything starts."""
