"""The contract with verl: its types, and its registries. Every private name that we rely on is in
`scripts/verl_contract`."""

VERSION = "0.9.1"  # With which verl-mas is tested
