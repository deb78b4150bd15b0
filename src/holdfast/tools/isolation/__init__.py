"""The process tier of tools: a callback runs in a process of its own, which is killed with
everything that it started when its time is over.

`isolated` decides what another process can import and which values cross; `call` runs one call;
`child` and `worker` are the other side. The worker imports nothing of the parent's side.
"""
