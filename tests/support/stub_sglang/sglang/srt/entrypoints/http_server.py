"""Names that verl imports and these tests do not use."""

from sglang.srt.server_args import ServerArgs

__all__ = ["ServerArgs", "app"]
app = _GlobalState = launch_server = set_global_state = None
