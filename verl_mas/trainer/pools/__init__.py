"""Which policies share which GPUs, and when."""
