"""A program that asks its agent once and runs each argument in a shell. The output of an argument that begins with
`outcome` is written as the outcome."""

import os
import subprocess
import sys

from urllib_team import say

if __name__ == "__main__":
    say()
    for text in sys.argv[1:]:
        shell = ["bash", "-c", text.removeprefix("outcome")]
        printed = subprocess.run(shell, close_fds=False, stdout=subprocess.PIPE, check=False).stdout
        os.write(3 if text.startswith("outcome") else 1, printed)
