"""Language models behind servers of others."""
