"""JSON output of commands has no character that controls a terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast import Agent, Conversation, ScriptedLLM, SQLiteStore
from holdfast.cli import main

HOSTILE = "a\x7fb\x9b2Jc\x85d\u2028e\u202ef\x1b[2Jg"


@pytest.mark.parametrize("command", [["show", "--json"], ["stats", "--json"], ["check", "--json"]])
def test_no_control_character_is_raw(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    path = tmp_path / "store.db"
    with (
        SQLiteStore(path) as store,
        Conversation(Agent(ScriptedLLM([HOSTILE])), store, "c") as conversation,
    ):
        conversation.send_message(HOSTILE)
        conversation.run()
    main([*command, str(path), *(["c"] if command[0] == "show" else [])])
    output = capsys.readouterr().out
    assert output
    assert not [
        char
        for char in output
        if (ord(char) < 0x20 and char != "\n") or 0x7F <= ord(char) < 0xA0 or char in "\u2028\u202e"
    ]
    objects = [json.loads(line) for line in output.splitlines()]
    if command[0] == "show":
        assert HOSTILE in [
            event["content"][0]["text"] for event in objects if event["type"] == "message"
        ]
