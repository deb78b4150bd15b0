"""The floor: `http.client` and a history of bytes. It parses, checks and remembers nothing, and
calls the tool with the arguments that the mock model is known to send."""

import http.client

END = b"]}"


def make(url, tool):
    return url, tool


def ask(agent, text):
    url, tool = agent
    _, _, host, *path = url.split("/")
    connection = http.client.HTTPConnection(host)
    history = bytearray(
        b'{"model":"mock","messages":[{"role":"user","content":"%s"}' % text.encode()
    )
    for number in range(1_000_000):
        history += END
        connection.request(
            "POST",
            f"/{'/'.join(path)}/chat/completions",
            history,
            {"Content-Type": "application/json"},
        )
        answer = connection.getresponse().read()
        del history[-len(END) :]
        if b'"finish_reason":"stop"' in answer:
            break
        history += (
            b',{"role":"assistant","content":null,"tool_calls":[%s]}'
            % answer[answer.index(b'{"id":"call_') : answer.index(b"]},")]
        )
        history += b',{"role":"tool","tool_call_id":"call_%d","content":"%s"}' % (
            number,
            tool(f"item-{number}", 3).encode(),
        )
    connection.close()
    return history
