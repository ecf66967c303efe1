"""Data sets for verl: public sets, local files and generators, checked and written as parquet."""
