"""Extension of vLLM's worker process: loads new weights into layers that vLLM packed for the CPU."""

from __future__ import annotations

import torch
from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightReceiver
from verl.workers.rollout.vllm_rollout.weight_update_utils import apply_buffer_updates, split_buffer_updates
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

from verl_mas.engines.vllm_extension import AdapterExtension
from verl_mas.verl_.types import Fields, Untyped


class CpuWorkerExtension(AdapterExtension):
    """verl's extension, but with vLLM's `reload_weights`, because packed layers refuse `load_weights`."""

    def update_weights_from_ipc(
        self, peft_config: Fields | None = None, base_sync_done: bool = False, use_shm: bool = False
    ) -> None:
        if peft_config:
            assert base_sync_done, "checks refuse an engine that starts from dummy weights"
            super().update_weights_from_ipc(peft_config, base_sync_done, use_shm)
            return
        reload_weights(self.model_runner, self._receive(use_shm))

    def _receive(self, use_shm: bool) -> list[tuple[str, torch.Tensor]]:
        """Return all weights of this round. They are copied, because the next bucket overwrites the buffer."""
        receiver = BucketedWeightReceiver(self._get_zmq_handle(), device=torch.device("cpu"), use_shm=use_shm)
        weights: list[tuple[str, torch.Tensor]] = []

        def keep(bucket: list[tuple[str, torch.Tensor]], is_last: bool) -> None:
            weights.extend((name, tensor.clone()) for name, tensor in bucket)

        receiver.receive_weights(on_bucket_received=keep)
        return weights


@torch.no_grad()
def reload_weights(model_runner: Untyped, weights: list[tuple[str, torch.Tensor]]) -> None:
    """Put `weights` (Hugging Face names) into the model, and repack every layer that computes with them."""
    model = model_runner.get_model()
    parameters, buffers, named_buffers = split_buffer_updates(model, weights)
    model_runner.reload_weights(weights_iterator=iter(parameters))
    apply_buffer_updates(model, buffers, named_buffers=named_buffers)
    # vLLM repacks only layers that get weights. A tied output layer gets none, and would keep its old packed weights.
    for module in model.modules():
        if isinstance(module, ParallelLMHead):
            module.quant_method.process_weights_after_loading(module)
