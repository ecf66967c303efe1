"""Ray's Python for workers of a run on the CPU: has a worker forked, or becomes it.

Ray starts this script with the address of `forked_worker` and the command of the worker. It needs the standard
library alone, and so 30 ms.

The worker's command, environment and folder are in a file in memory; it and the three standard streams go to the server
as descriptors. One byte comes back when the worker is forked: this process then ends, and Ray knows the worker by the
number that it registers with. Without the byte, because the server is gone, busy for too long or cannot fork, this
process becomes the worker.
"""

import contextlib
import json
import os
import socket
import sys

address, *command = sys.argv[1:]
file = os.memfd_create("worker")
os.write(file, json.dumps([command, dict(os.environ), os.getcwd()]).encode())
# verl then sets PYTHONHASHSEED, which Python reads when it starts.
if os.environ.get("VERL_FULL_DETERMINISM") != "1":
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as server:
        # Ray waits 60 s for a worker, which must be enough to import verl after this.
        server.settimeout(20)
        server.connect(address)
        socket.send_fds(server, [b"1"], [file, 0, 1, 2])
        if server.recv(1):
            sys.exit()
os.execv(sys.executable, [sys.executable, *command])
