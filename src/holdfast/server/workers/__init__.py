"""`--isolation process`: each open conversation runs in a worker process of its own. Only the
server has the store.

`processes` starts workers through `forkserver` and ends them. `worker` runs inside a worker, on
a `pipestore`. `desk` and `live` are the server's side of a worker. `link` carries the `messages`
between both. `workshop` combines these parts for the host.
"""
