"""Inference engines of the policies, and the hooks that add engines to verl's lists.

verl keeps two lists of engines: replicas (the trainer's handles of servers) and adapters (objects through which an
actor worker wakes servers and sends weights). `verl_mas.plugin` registers hooks of `facts`, which fill these lists.
"""
