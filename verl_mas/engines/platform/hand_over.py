"""Python executable of Ray's workers in a run on the CPU. It asks a server to fork a worker, or becomes the worker.

Ray starts this script with the address of `forked_worker` and the command of the worker. The script needs only the
standard library, so it takes 30 ms.

The worker's command, environment and folder are in a file in memory. This file and the three standard streams are sent
to the server as descriptors. One byte comes back when the worker is forked. This process then ends. The worker's
command has an identifier from Ray, with which the worker registers, so Ray recognises the worker although its process
id is new. If no byte comes, because the server is gone, is busy for too long or cannot fork, this process becomes the
worker.
"""

import contextlib
import json
import os
import socket
import sys

address, *command = sys.argv[1:]
file = os.memfd_create("worker")
os.write(file, json.dumps([command, dict(os.environ), os.getcwd()]).encode())
# For full determinism verl sets PYTHONHASHSEED, which Python reads only at its start, so the worker cannot be a fork.
if os.environ.get("VERL_FULL_DETERMINISM") != "1":
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as server:
        # Ray waits 60 s for a worker. If the server has not answered after 20 s, this process becomes the worker, and
        # still has 40 s to import verl.
        server.settimeout(20)
        server.connect(address)
        socket.send_fds(server, [b"1"], [file, 0, 1, 2])
        if server.recv(1):
            sys.exit()
os.execv(sys.executable, [sys.executable, *command])
