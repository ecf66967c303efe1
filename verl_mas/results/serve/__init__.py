"""After training: exports a team with its policies as Hugging Face or PEFT folders; loads, serves and evaluates it."""
