"""Run one function of one benchmark in this fresh process and print its result: `child.py
MODULE:FUNCTION JSON_ARGUMENTS`."""

import json
import sys
from importlib import import_module

if __name__ == "__main__":
    module, _, name = sys.argv[1].partition(":")
    print(json.dumps(getattr(import_module(module), name)(*json.loads(sys.argv[2]))))
