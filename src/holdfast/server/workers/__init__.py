"""`--isolation process`: each open conversation runs in its own worker process. Only the server has
the store.

`processes` starts workers through `forkserver` and ends them. `worker` runs inside a worker, on
a `pipe_store`. `store_proxy` and `worker_conversation` are the server's side of a worker. A
`channel` carries the calls and `messages` between both. `worker_pool` combines these parts for
the host.

Workers do not open the store themselves. Eight writers in one process, which commits their appends
together, were measured at 1,400 durable appends per second. Eight processes with a connection each
reached 120. A worker that runs a client's code would also see every tenant's journals.
"""
