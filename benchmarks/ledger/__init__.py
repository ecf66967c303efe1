"""A stand-in for a GPU's memory: real runs of the trainer on the CPU, accounted at the sizes of real models.

Workers and engines of a run report what they take and free. The order of these events is the trainer's own; the sizes
are those of a recipe's models on its GPUs (`sizes`), so one recorded run can be accounted at the sizes of every team
of its shape. An event after which a card holds more than it has fails in the process that reports it.
"""

# In VERL_PLATFORM and trainer.device. Here, as importing `ledger.hooks` changes the process.
PLATFORM = "ledger"
