"""The tree of errors that Holdfast raises. Each is also the builtin error that it resembles.

HoldfastError
├── ConfigurationError (ValueError)          a wrong argument or setting; the message names it
│   ├── KeyRefused (PermissionError)         an agent server does not accept the key
│   ├── HookDenied                           a hook denied something: hook, on, failed
│   └── UnreadableEvent                      an event that could not be read back: event, problem
├── NotFound (LookupError)                   an unknown id: `kind` and `id` name it
├── Conflict (ValueError)                    the request does not fit the present state
│   └── NotPending                           a call that waits for no decision, answer or result
├── Denied (PermissionError)                 a policy or a limit of rights forbids the request
├── TooMany (RuntimeError)                   an agent server's limit is reached; `bound` names it
├── SignatureInvalid (PermissionError)       a webhook message that cannot be trusted
├── WrongProcess (RuntimeError)              an object of another process, used in a fork of it
├── ConversationError
│   ├── ConversationClosed (RuntimeError)    a method that needs an open conversation, after `close`
│   ├── ConversationBusy (RuntimeError)      another thread drives it, or it would wait on itself
│   ├── RunFailed (RuntimeError)             a run that did not finish: status, error
│   ├── OutputInvalid (ValueError)           problem, rounds
│   ├── GoalMissed (RuntimeError)            missing, rounds
│   └── LimitExceeded (RuntimeError)         type, value, limit, source
├── StoreError (OSError)
│   ├── ConversationNotFound (NotFound)
│   ├── LeaseHeld (BlockingIOError)          another owner has the conversation; `holder` names it
│   └── Fenced (PermissionError)             this owner's lease was taken over
├── RuntimeFault (OSError)                   a command, file or path that the runtime cannot use
│   └── PathRefused (PermissionError)        a path outside the workdir
├── ToolError                                error_type, retryable, max_retries, backoff
│   ├── ToolValidationError (ValueError)
│   ├── ToolNotFound (LookupError)
│   ├── ToolTimeout (TimeoutError)
│   ├── ToolCancelled
│   └── ScriptDiverged
└── LLMError                                 status, code, request_id, retryable, retry_after
    ├── AuthenticationError (PermissionError)
    ├── PermissionDenied (PermissionError)
    ├── ModelNotFound (LookupError)
    ├── BadRequest (ValueError)
    │   ├── ContextTooLong
    │   └── ContentFiltered
    ├── RateLimited
    ├── ServerError                          5xx
    │   └── Overloaded                       no capacity at the moment
    ├── LLMTimeout (TimeoutError)
    ├── LLMConnectionError (ConnectionError)
    ├── BadResponse (ValueError)             an answer that does not follow the wire's protocol
    │   └── StreamInterrupted (EOFError)     a stream that ended without a finish
    └── Cancelled                            the caller's cancellation, not a failure
"""

from __future__ import annotations

from typing import Literal

Backoff = Literal["none", "fixed", "exponential"]


class HoldfastError(Exception):
    """Base of every error raised by Holdfast."""


class ConfigurationError(HoldfastError, ValueError):
    """A wrong argument or setting. The message names it and its permitted values."""


class KeyRefused(ConfigurationError, PermissionError):
    """An agent server does not accept the key of a request, or the request has none."""


class HookDenied(ConfigurationError):
    """A hook denied something: the hook's name (`hook`), the place (`on`), and `failed`, True if
    the hook failed instead."""

    def __init__(self, message: str, hook: str = "", on: str = "", failed: bool = False) -> None:
        super().__init__(message)
        self.hook = hook
        self.on = on
        self.failed = failed

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.hook, self.on, self.failed)


class UnreadableEvent(ConfigurationError):
    """An event that was refused because it could not be read back unchanged. Nothing was written.
    `event` names the event and `problem` the fault."""

    def __init__(self, event: str, problem: str) -> None:
        super().__init__(f"{event} cannot be written: {problem.rstrip('.')}. Nothing was written.")
        self.event = event
        self.problem = problem

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.event, self.problem)


# --- requests that the present state does not allow ---


class NotFound(HoldfastError, LookupError):
    """An unknown id. `kind` is the kind of object ("call", "agent", "workspace", ...), `id` the
    requested id."""

    def __init__(self, message: str, kind: str = "", id: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.id = id

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.kind, self.id)


class Conflict(HoldfastError, ValueError):
    """The request does not fit the present state. An id or idempotency key already names something
    else, or the object is in use or has ended."""


class NotPending(Conflict):
    """The call exists but waits for no decision, answer or result: it is settled, runs, or has not
    had its turn."""


class Denied(HoldfastError, PermissionError):
    """A policy, or the rights of the caller, forbid the request."""


# --- agent servers ---


class TooMany(HoldfastError, RuntimeError):
    """An agent server's limit on a number of objects is reached. `bound` names the setting."""

    def __init__(self, message: str, bound: str = "") -> None:
        super().__init__(message)
        self.bound = bound

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.bound)


class SignatureInvalid(HoldfastError, PermissionError):
    """A webhook message that does not come from the server, was changed on its way, or is too
    old."""


# --- conversations ---


class WrongProcess(HoldfastError, RuntimeError):
    """An object that belongs to another process was used in a forked child of that process."""


class ConversationError(HoldfastError):
    """The conversation cannot carry out the request."""


class ConversationClosed(ConversationError, RuntimeError):
    """The conversation was closed in this process; open it again by its id."""


class ConversationBusy(ConversationError, RuntimeError):
    """The conversation is being driven elsewhere in this process, or would wait on itself."""


class RunFailed(ConversationError, RuntimeError):
    """A run rests without having finished: its `status`, and the class name of the `error` that
    stopped it, "" for none."""

    def __init__(self, message: str, status: str = "", error: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.error = error

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.status, self.error)


class GoalMissed(ConversationError, RuntimeError):
    """A run did not reach its agent's goal. `missing` is the unmet part of the goal; the model was
    sent back to work `rounds` times."""

    def __init__(self, missing: str, rounds: int = 0) -> None:
        super().__init__(f"The goal was not reached after {rounds} rounds: {missing.rstrip('.')}.")
        self.missing = missing
        self.rounds = rounds

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.missing, self.rounds)


class OutputInvalid(ConversationError, ValueError):
    """A run's output does not fit its `output_type`. `problem` says why; the run ended after
    `rounds` failed rounds."""

    def __init__(self, problem: str, rounds: int = 0) -> None:
        after = (
            f"No valid output in {rounds} rounds. Of the last one: "
            if rounds
            else "The output is not valid: "
        )
        super().__init__(f"{after}{problem.rstrip('.')}.")
        self.problem = problem
        self.rounds = rounds

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.problem, self.rounds)


class LimitExceeded(ConversationError, RuntimeError):
    """A run reached one of its limits, or a conversation the budget of its tree. `type` is the kind
    of limit (steps, ...), `value` the value reached, and `source` the owner of the `limit`."""

    def __init__(
        self, type: str, value: float, limit: float, source: str, advice: str = ""
    ) -> None:
        advice = advice or f"Raise Limits({type}=...) or send another message."
        super().__init__(f"{source} reached its limit of {limit:g} {type} ({value:g}). {advice}")
        self.type = type
        self.value = value
        self.limit = limit
        self.source = source
        self.advice = advice

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.type, self.value, self.limit, self.source, self.advice)


# --- stores ---


class StoreError(HoldfastError, OSError):
    """A store could not read or write."""


class ConversationNotFound(StoreError, NotFound):
    """The store has no conversation of that id."""


class LeaseHeld(StoreError, BlockingIOError):
    """Another owner drives this conversation. `holder` names it."""

    def __init__(self, conversation_id: str, holder: str) -> None:
        super().__init__(
            f"Conversation {conversation_id!r} is held by {holder}. Close it there first, or open"
            " another id."
        )
        self.conversation_id = conversation_id
        self.holder = holder

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.conversation_id, self.holder)


class Fenced(StoreError, PermissionError):
    """A later owner took over this owner's lease; nothing of this write was stored."""


# --- runtimes ---


class RuntimeFault(HoldfastError, OSError):
    """A command, file or path that the runtime cannot use."""


class PathRefused(RuntimeFault, PermissionError):
    """A path outside the folders that the runtime may touch. `path` is the path as it was given,
    if there was one."""

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.path)


# --- tools ---

# error_type -> (retryable, max_retries, backoff): the retry policy of a failed call if its tool
# allows repeating.
RETRY_PRESETS: dict[str, tuple[bool, int, Backoff]] = {
    "rate_limit": (True, 3, "exponential"),
    "network": (True, 3, "exponential"),
    "timeout": (True, 1, "fixed"),
    "internal": (True, 1, "fixed"),
    "validation": (False, 0, "none"),
    "authentication": (False, 0, "none"),
    "not_found": (False, 0, "none"),
    "unknown": (False, 0, "none"),
    "cancelled": (False, 0, "none"),
}


class ToolError(HoldfastError):
    """A tool call failed. `error_type` is a key of `RETRY_PRESETS`, which gives the retry policy's
    defaults. `retry_after` is the number of seconds that the service asks to wait, if any."""

    error_type = "internal"

    def __init__(
        self,
        message: str,
        error_type: str | None = None,
        *,
        retryable: bool | None = None,
        max_retries: int | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        super().__init__(message)
        if error_type is not None:
            if error_type not in RETRY_PRESETS:
                raise ConfigurationError(
                    f"error_type takes one of {', '.join(RETRY_PRESETS)}, not {error_type!r}."
                )
            self.error_type = error_type
        preset = RETRY_PRESETS[self.error_type]
        self.retryable = preset[0] if retryable is None else retryable
        self.max_retries = preset[1] if max_retries is None else max_retries
        self.backoff: Backoff = preset[2] if backoff is None else backoff
        self.retry_after: float | None = None


class ToolValidationError(ToolError, ValueError):
    """Arguments that do not fit the tool's schema."""

    error_type = "validation"


class ToolNotFound(ToolError, LookupError):
    """No tool of that name."""

    error_type = "not_found"


class ToolTimeout(ToolError, TimeoutError):
    """The tool did not answer in time."""

    error_type = "timeout"


class ToolCancelled(ToolError):
    """The call was cancelled before it had a result."""

    error_type = "cancelled"


class ScriptDiverged(ToolError):
    """A script of code mode that was run again made another call than the journal has, or ran on
    another version of the interpreter."""

    error_type = "unknown"


# --- models ---


class LLMError(HoldfastError):
    """A model call failed. `status` is the HTTP status (0: none), `code` the provider's own,
    `retry_after` in seconds."""

    retryable = False

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        code: str = "",
        request_id: str = "",
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.request_id = request_id
        self.retry_after = retry_after


class AuthenticationError(LLMError, PermissionError):
    """The provider does not know the key."""


class PermissionDenied(LLMError, PermissionError):
    """The key may not do this."""


class ModelNotFound(LLMError, LookupError):
    """The provider has no such model, or the base URL no such path."""


class BadRequest(LLMError, ValueError):
    """The provider refused the request."""


class ContextTooLong(BadRequest):
    """The request does not fit the model's context window."""


class ContentFiltered(BadRequest):
    """The provider's content filter stopped the request or the answer."""


class RateLimited(LLMError):
    """Too many requests, or no quota left."""

    retryable = True


class ServerError(LLMError):
    """The provider failed (5xx)."""

    retryable = True


class Overloaded(ServerError):
    """The provider has no capacity for the model at the moment."""


class LLMTimeout(LLMError, TimeoutError):
    """No answer in time, by our clock or the provider's (408, 504)."""

    retryable = True


class LLMConnectionError(LLMError, ConnectionError):
    """The provider could not be reached, or the connection broke."""

    retryable = True


class BadResponse(LLMError, ValueError):
    """The answer does not follow the wire's protocol."""

    retryable = True


class StreamInterrupted(BadResponse, EOFError):
    """A stream ended without a finish. The text before it is not an answer."""


class Cancelled(LLMError):
    """The caller cancelled the model call."""
