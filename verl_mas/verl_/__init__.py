"""The contract with verl: its types, and its registries. Every private name of verl that verl-mas uses is listed in
`scripts/verl_contract`."""

VERSION = "0.9.1"  # the version with which verl-mas is tested
