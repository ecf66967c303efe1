"""Text formats. Each has its prompt fragment, its renderer and its parser."""

from verl_mas.workflow.codecs.actions import ActionList
from verl_mas.workflow.codecs.base import Codec, Malformed
from verl_mas.workflow.codecs.boxed import Boxed
from verl_mas.workflow.codecs.code import CodeBlock
from verl_mas.workflow.codecs.json_block import JsonBlock
from verl_mas.workflow.codecs.tag import Choice, Tag

__all__ = ["ActionList", "Boxed", "Choice", "CodeBlock", "Codec", "JsonBlock", "Malformed", "Tag"]
