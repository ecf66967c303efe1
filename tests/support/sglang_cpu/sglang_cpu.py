"""A plugin of verl for tests, with which verl sends weights to SGLang without a GPU."""

from torch.multiprocessing import reductions, set_sharing_strategy

# SGLang pickles a tensor with its GPU's id, which one on the CPU does not have. This name says that it does so already.
reductions._reduce_tensor_original = reductions.reduce_tensor  # type: ignore[attr-defined]  # noqa: SLF001
# The default sends file descriptors, which the scheduler would fetch with a secret of the training worker.
set_sharing_strategy("file_system")
