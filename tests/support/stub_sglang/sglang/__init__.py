"""SGLang 0.5.12 for tests: its server's interface and rules, with verl-mas's embedded engine in place of the kernels.

verl's own server, adapter and replica for SGLang run on it unchanged, on the CPU. What is the same as in SGLang, each
read in its source (paths below srt/):

- A request runs until it has finished or `abort_request` ends it. A caller that is cancelled ends nothing
  (managers/tokenizer_manager.py `_wait_one_response`); `abort_request` matches the beginnings of ids, and the state of
  a request that is aborted while it waits stays (`_handle_abort_req`).
- The scheduler ends, and the server's process with it, when it is asked to release memory or to take weights while
  anything runs (managers/scheduler_update_weights_mixin.py), to resume what was not released (the same), and by a stop
  string without a tokenizer (managers/schedule_batch.py `tail_str`).
- A request that has answered is in the scheduler's last batch for one more step (managers/scheduler.py
  `event_loop_overlap`, `is_fully_idle`).
- Weights that are released without a copy in host memory are lost.
- `port + 10000` is a port (server_args.py).
- An adapter gets a new id at each load (lora/lora_registry.py), and a batch has at most `max_loras_per_batch` of them,
  of which the bare base is one (lora/lora_manager.py `validate_lora_batch`).

Added: work on released memory ends the scheduler, too.
"""

__version__ = "0.5.12"
