"""The process tier of tools: a callback runs in its own process. When its time is over, that
process and everything that it started are killed.

`isolated` decides what another process can import and which values cross; `call` runs one call;
`child` and `worker` are the other side. The worker imports nothing of the parent's side.
"""
