"""Simulate the memory of GPUs: the trainer really runs on the CPU, and its memory is accounted at real models' sizes.

Workers and engines of a run report what they take and free. The order of these events is the trainer's own; the sizes
are those of a recipe's models on its GPUs (`sizes`), so one recorded run can be accounted at the sizes of every team
of its shape. If a card would hold more memory than it has after an event, the reporting process fails.
"""

# The value of VERL_PLATFORM and trainer.device. It is not in `ledger.hooks`, because importing that module changes the
# process.
PLATFORM = "ledger"
