"""`holdfast completion`: scripts that complete the command line in bash, zsh and fish."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterable, Mapping

from holdfast.cli.arguments import command_line
from holdfast.cli.exit_codes import Exit

# The shells' own functions complete files; each script holds the tables of commands and options.
_BASH = """\
_holdfast() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}}
    local command=${{COMP_WORDS[1]}}
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        {first}
        return
    fi
    case "$command $before" in
{values}
    esac
    case "$command" in
{options}
    esac
}}
complete -o default -F _holdfast holdfast
"""
_ZSH = """\
#compdef holdfast
autoload -U +X bashcompinit && bashcompinit
{bash}"""


def completion(options: Namespace, env: Mapping[str, str]) -> Exit:
    """Print the script for the shell."""
    write = {"bash": _bash, "zsh": lambda: _ZSH.format(bash=_bash()), "fish": _fish}
    sys.stdout.write(write[options.shell]())
    return Exit.FINISHED


def _bash() -> str:
    commands: list[str] = []
    values: list[str] = []
    names: list[str] = []
    for command, _, options in command_line().described():
        commands.append(command)
        for option in options:
            for name in option.names if option.choices else ():
                reply = _reply(option.choices)
                values.append(f"        '{command} {name}') {reply}; return ;;")
        reply = _reply(name for option in options for name in option.names)
        names.append(f"        {command}) [[ $current == -* ]] && {reply} ;;")
    return _BASH.format(first=_reply(commands), values="\n".join(values), options="\n".join(names))


def _reply(words: Iterable[str]) -> str:
    return f'COMPREPLY=($(compgen -W "{" ".join(words)}" -- "$current"))'


def _fish() -> str:
    lines: list[str] = []
    for command, summary, options in command_line().described():
        first = "complete -c holdfast -n __fish_use_subcommand -f"
        lines.append(f"{first} -a {command} -d {_quoted(summary)}")
        for option in options:
            names = [
                f"-l {name[2:]}" if name[:2] == "--" else f"-s {name[1]}" for name in option.names
            ]
            value = f" -x -a '{' '.join(option.choices)}'" if option.choices else ""
            value = value or (" -r" if option.takes_value else "")
            prefix = f"complete -c holdfast -n '__fish_seen_subcommand_from {command}'"
            lines.append(f"{prefix} {' '.join(names)}{value} -d {_quoted(option.help)}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """Return a string of fish, in which only a quote and a backslash are special."""
    text = " ".join(text.split())
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
