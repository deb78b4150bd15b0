"""Token counts of any shape lose no answer. All other broken answers are the conformance kit's
(tests/testing/test_wires.py)."""

from __future__ import annotations

import pytest

from holdfast.llm.wires import wire


@pytest.mark.parametrize(
    "usage",
    [
        b'{"prompt_tokens":1e999}',
        b'{"prompt_tokens":1e30}',
        b'{"prompt_tokens":-5000}',
        b'{"prompt_tokens":null}',
        b"[1]",
        b"5",
    ],
)
def test_counts_that_are_none_lose_no_answer(usage: bytes) -> None:
    said = b'"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"'
    data = b'{"choices":[{' + said + b'}],"usage":' + usage + b"}"
    answer = wire("openai_chat").parse(data)
    assert (answer.text, answer.usage.input_tokens) == ("hi", 0)
    parser = wire("openai_chat").stream()
    parser.feed(b"data: " + data + b"\n\n")
    answer = parser.finish()
    assert (answer.text, answer.usage.input_tokens) == ("hi", 0)
