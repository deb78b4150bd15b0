"""A list at a terminal, of which the user chooses one with the arrow keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prompt_toolkit.application import Application
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.layout import FormattedTextControl, Layout, Window

_ROWS = 12  # shown at once
_ESCAPE_SECONDS = 0.05  # after which Esc is a key of its own


async def pick(question: str, rows: Sequence[str], clip: Callable[[str], str]) -> int | None:
    """Return the index of the row that the user chooses, None if the user leaves with Esc, Ctrl-C
    or Ctrl-D. `clip` cuts a row to the terminal's width."""
    list_ = _List(question, rows, clip)
    app: Application[int | None] = Application(
        Layout(Window(FormattedTextControl(list_.text, show_cursor=False), wrap_lines=False)),
        key_bindings=list_.keys(),
        erase_when_done=True,
    )
    app.ttimeoutlen = app.timeoutlen = _ESCAPE_SECONDS
    app.renderer.cpr_not_supported_callback = lambda: None  # it works without
    return await app.run_async(handle_sigint=False)


class _List:
    def __init__(self, question: str, rows: Sequence[str], clip: Callable[[str], str]) -> None:
        self._question = question
        self._rows = rows
        self._clip = clip
        self._at = 0
        self._first = 0  # the first shown row

    def text(self) -> StyleAndTextTuples:
        self._first = min(self._first, self._at)
        self._first = max(self._first, self._at - _ROWS + 1)
        last = min(self._first + _ROWS, len(self._rows))
        fragments: StyleAndTextTuples = [("bold", self._clip(f"{self._question}:") + "\n")]
        for at in range(self._first, last):
            mark, style = (">", "reverse") if at == self._at else (" ", "")
            fragments.append((style, self._clip(f"{mark} {self._rows[at]}")))
            fragments.append(("", "\n"))
        where = f"{self._at + 1} of {len(self._rows)}; arrow keys, Enter; Esc for none"
        fragments.append(("class:dim", self._clip(where)))
        return fragments

    def _move(self, by: int) -> None:
        self._at = max(0, min(len(self._rows) - 1, self._at + by))

    def keys(self) -> KeyBindings:
        keys = KeyBindings()
        steps = {"up": -1, "c-p": -1, "k": -1, "down": 1, "c-n": 1, "j": 1}
        steps |= {"pageup": -_ROWS, "pagedown": _ROWS}
        steps |= {"home": -len(self._rows), "end": len(self._rows)}
        for key, by in steps.items():

            @keys.add(key)
            def _(event: KeyPressEvent, by: int = by) -> None:
                self._move(by)

        @keys.add("enter")
        def _(event: KeyPressEvent) -> None:
            event.app.exit(result=self._at)

        @keys.add("escape")
        @keys.add("c-c")
        @keys.add("c-d")
        def _(event: KeyPressEvent) -> None:
            event.app.exit(result=None)

        return keys
