"""An MCP server over stdio that answers byte for byte as a JSON file says: `{"tools": [...], "answers": {tool: text}, "modern": bool}`.

`@ID@` in an answer is the request's id. Without the mcp package, so that it can be as wrong as it likes.
"""

import json
import sys
from pathlib import Path

SCRIPT = json.loads(Path(sys.argv[1]).read_text())
INFO = {"name": "scripted", "version": "1"}


def reply(asked):
    match asked["method"]:
        case "server/discover" if SCRIPT.get("modern"):
            found = {
                "supportedVersions": ["2026-07-28"],
                "capabilities": {"tools": {}},
                "resultType": "complete",
                "ttlMs": 0,
                "cacheScope": "public",
            }
        case "initialize":
            found = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": INFO}
        case "tools/list":
            found = {"tools": SCRIPT["tools"]}
            if SCRIPT.get("modern"):
                found |= {"resultType": "complete", "ttlMs": 0, "cacheScope": "public"}
        case "tools/call":
            return SCRIPT["answers"][asked["params"]["name"]].replace("@ID@", json.dumps(asked["id"]))
        case _:
            return json.dumps({"jsonrpc": "2.0", "id": asked["id"], "error": {"code": -32601, "message": "unknown"}})
    return json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": found})


for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        sys.stdout.write(reply(asked) + "\n")
        sys.stdout.flush()
