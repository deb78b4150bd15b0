"""`ObjectStruct`: the base of objects with a life whose fields are declared as msgspec structs."""

from __future__ import annotations

import msgspec


class ObjectStruct(msgspec.Struct, eq=False):
    """A struct that behaves like a plain object: it equals only itself, and its repr shows its
    class alone. Fields may hold secrets and whole journals, and error reporters print reprs."""

    __repr__ = object.__repr__
