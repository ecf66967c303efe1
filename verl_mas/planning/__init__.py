"""What a run needs of GPUs, hosts and disks, reckoned from its configuration before anything starts."""
