"""The protocols that programs speak, a file each."""
