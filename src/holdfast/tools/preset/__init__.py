"""Tools that ship with Holdfast and need no runtime; each module declares its own, and an agent
server imports them unless told otherwise."""
