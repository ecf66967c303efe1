"""`python -m verl_mas` is the `verl-mas` command."""

import sys

from verl_mas.cli import main

sys.exit(main())
