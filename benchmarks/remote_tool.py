"""The tool of `remote` in a module that declares it: an agent server that imports this module runs
the tool itself. `bench_step.look_up` is the client's."""

from bench_step import look_up as function

from holdfast import Tool

look_up = Tool.from_function(function, name="look_up")
