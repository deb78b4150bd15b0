"""`--isolation process`: each open conversation in a worker process of its own, while the server
alone has the store.

`processes` starts workers (by way of `forkserver`) and ends them; `worker` is what runs in one, on
a `pipestore`; `desk` and `live` are the server's side of it; `link` carries what they say to each
other (`messages`); `workshop` puts it together for the host.
"""
