"""The stages of scripts/gpu_proof.py."""
