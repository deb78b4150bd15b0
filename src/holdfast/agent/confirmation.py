"""Which calls somebody must approve before they run: policies, and what they decide."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from fnmatch import fnmatchcase
from typing import Any, Literal, Protocol, cast

import msgspec

from holdfast.content import ToolCall
from holdfast.errors import ConfigurationError
from holdfast.tools.results import clean

_VERDICTS = ("allow", "ask", "deny")

_log = logging.getLogger("holdfast")


class Verdict(msgspec.Struct, frozen=True):
    """What a policy says of a call: it may run, somebody is to be asked, or it may not. The model is told the `reason` of a deny."""

    decision: Literal["allow", "ask", "deny"]
    reason: str = ""


class ConfirmationPolicy(Protocol):
    """Decides, before a call is run, whether it may. Asked once for each call of an answer, on the conversation's thread."""

    def decide(self, call: ToolCall) -> Verdict:
        """The verdict for a call, whose `id` is not given yet. If this raises, somebody is asked."""
        ...


class ByTool:
    """A policy that looks at the tool's name: `{"terminal": "ask", "git.*": "deny", "*": "allow"}`. A name itself counts before a pattern, and of
    patterns the first that fits; `*` is every other one, allowed if it is not there."""

    def __init__(self, verdicts: Mapping[str, str]) -> None:
        for name, verdict in verdicts.items():
            if verdict not in _VERDICTS:
                raise ConfigurationError(f"Agent: confirm takes allow, ask or deny for each tool, not {verdict!r} for {name!r}.")
        self._verdicts = {name: Verdict(cast(Any, verdict), self._reason(name, verdict)) for name, verdict in verdicts.items()}
        self._patterns = [(name, verdict) for name, verdict in self._verdicts.items() if name != "*" and any(c in name for c in "*?[")]
        self._other = self._verdicts.get("*", Verdict("allow"))

    @property
    def verdicts(self) -> dict[str, str]:
        """What it was made with: `ByTool(policy.verdicts)` is the same."""
        return {name: verdict.decision for name, verdict in self._verdicts.items()}

    @staticmethod
    def _reason(name: str, verdict: str) -> str:
        what = "every call" if name == "*" else f"every call of {name}"
        return {"ask": f"{what} is to be confirmed", "deny": f"{what} is forbidden here", "allow": ""}[verdict]

    def decide(self, call: ToolCall) -> Verdict:
        """See `ConfirmationPolicy.decide`."""
        found = self._verdicts.get(call.name)
        if found is None and self._patterns:
            found = next((verdict for pattern, verdict in self._patterns if fnmatchcase(call.name, pattern)), None)
        return found or self._other

    def look_for_typos(self, names: Sequence[str]) -> None:
        """Warn of names that are no tool's now and look like one that is: a guard that guards nothing. Others may be of tools that come later."""
        from difflib import get_close_matches

        for name in self._verdicts:
            if name not in names and not any(c in name for c in "*?[") and (near := get_close_matches(name, names, 1, 0.75)):
                _log.warning("Agent: confirm names %r, which is no tool of this agent. Did you mean %r?", name, near[0])

    def __repr__(self) -> str:
        return f"ByTool({self.verdicts})"


Confirm = Literal["never", "always"] | Iterable[str] | Mapping[str, str] | ConfirmationPolicy


def policy(confirm: Confirm) -> ConfirmationPolicy | None:
    """`Agent(confirm=...)` as a policy; None for "never". Raises `ConfigurationError` for what is none."""
    given: Any = confirm
    if given == "never":
        return None
    if given == "always":
        return ByTool({"*": "ask"})
    if isinstance(given, Mapping):
        return ByTool(cast("Mapping[str, str]", given))
    if callable(getattr(given, "decide", None)):
        return cast(ConfirmationPolicy, given)
    if isinstance(given, list | tuple | set | frozenset):
        names = list(cast("Iterable[Any]", given))
        if all(isinstance(name, str) for name in names):
            return ByTool(dict.fromkeys(names, "ask"))
    raise ConfigurationError(
        'Agent: confirm takes "never", "always", a list of tool names, a mapping of names to allow, ask or deny, '
        f"or a ConfirmationPolicy, not {given!r}."
    )


def decided(policy: ConfirmationPolicy, call: ToolCall) -> Verdict:
    """What a policy says of a call. A guard that fails does not let anything through: somebody is asked."""
    try:
        # A copy: what the model asked for is not a policy's to change.
        verdict: Any = policy.decide(msgspec.structs.replace(call, arguments=deepcopy(call.arguments)))
    except Exception as error:
        return Verdict("ask", clean(f"the confirmation policy failed: {type(error).__name__}: {error}"))
    if isinstance(verdict, str) and verdict in _VERDICTS:
        return Verdict(verdict)
    if isinstance(verdict, Verdict) and verdict.decision in _VERDICTS and isinstance(cast(Any, verdict.reason), str):
        return Verdict(verdict.decision, clean(verdict.reason))
    return Verdict("ask", clean(f"the confirmation policy answered {verdict!r}, which is no verdict"))
