"""SGLang 0.5.12 for tests that take milliseconds: its tokenizer manager and the rules of its scheduler, with verl-mas's
embedded engine in place of the model. `make test-sglang-cpu` runs the same tests with SGLang itself.

- A request runs until it has finished or is aborted, whether or not its caller is cancelled. An abort matches the
  beginnings of ids, and the state of a request that is aborted while it waits stays.
- The scheduler ends, and the server's process with it, when it must release memory while anything runs, resume
  what was not released, or handle a stop string without a tokenizer.
- A request that has answered is in the scheduler's last batch for one more step.
- An adapter gets a new id at each load, and a batch has at most `max_loras_per_batch` of them, of which the bare base
  is one.

Added: work on released memory ends the scheduler, too.
"""

__version__ = "0.5.12"
