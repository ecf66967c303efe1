"""The base class of engines, which verl's HTTP adapter has as its own."""


class EngineBase: ...
