"""Several LoRA adapters on one base: one group of training processes and one set of engines for all of them."""
