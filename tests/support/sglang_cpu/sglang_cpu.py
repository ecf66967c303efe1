"""A plugin of verl for tests, with which verl sends weights to SGLang without a GPU."""

from torch.multiprocessing import reductions, set_sharing_strategy

# SGLang patches torch so that a tensor is pickled with the id of its GPU, which a tensor on the CPU does not have. If
# this name exists, SGLang assumes that the patch is applied, and does not apply it.
reductions._reduce_tensor_original = reductions.reduce_tensor  # type: ignore[attr-defined]  # noqa: SLF001
# The default sends file descriptors, which the scheduler would fetch with a secret of the training worker.
set_sharing_strategy("file_system")
