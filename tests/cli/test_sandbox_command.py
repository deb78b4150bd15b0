"""`--sandbox`: commands run in a sandbox if the machine supports one, and need confirmation
otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli import sandbox as cli_sandbox
from holdfast.content import ToolResult
from holdfast.events import ToolCallFinished
from holdfast.runtime import Mount
from holdfast.runtime.sandbox.mechanisms import MECHANISMS
from tests import forks
from tests.cli.test_commands import HOLDFAST, Typist, environment, options
from tests.model_server import ModelServer, calls, text

pytestmark = pytest.mark.slow

PROMPT = r"\[y,n,e,a,q\] "
NOTE = "sandbox: commands can change this folder alone and have no network."
boxed = pytest.mark.skipif(
    all(mechanism.missing() for mechanism in MECHANISMS), reason="no sandbox can be made here"
)
# The command on a machine without support for a sandbox.
WITHOUT = [
    sys.executable,
    "-c",
    "import sys\n"
    "from holdfast.runtime.sandbox import mechanisms\n"
    "class Bad:\n"
    "    name = 'bubblewrap'\n"
    "    def missing(self): return 'the program bwrap is missing. Install bubblewrap.'\n"
    "mechanisms.MECHANISMS = (Bad(),)\n"
    "from holdfast.cli import main\n"
    "sys.exit(main())\n",
]


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """Return a new working directory."""
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def command(
    *arguments: str, program: list[str] = HOLDFAST, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run the command without a terminal. By default it uses a sandbox if the machine supports
    one."""
    return forks.run(
        [*program, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=environment(**{"HOLDFAST_SANDBOX": "", "HOME": "/home/nobody", **env}),
        timeout=60,
        check=False,
    )


def results(server: ModelServer) -> list[str]:
    """Return the tool results that the model received in the last request."""
    messages = server.requests[-1].messages
    return [message["content"] for message in messages if message["role"] == "tool"]


def terminal(shell_command: str) -> Any:
    """Return an answer that calls the terminal tool."""
    return calls(("terminal", {"command": shell_command}))


# --- in a sandbox ---


@boxed
def test_commands_run_in_a_sandbox_by_default(work: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("not for agents")
    script = (
        f"pwd; echo made > here.txt; cat {tmp_path}/secret.txt; touch /usr/local/holdfast-x; id -u"
    )
    with ModelServer([terminal(script), text("Done.")]) as server:
        ended = command("run", "x", *options(server, work))
        assert ended.returncode == 0, ended.stderr
        assert NOTE in ended.stderr
        assert "--sandbox off turns it off" in ended.stderr
        assert "--mount" in ended.stderr
        [result] = results(server)
        system = server.requests[0].messages[0]["content"]
    assert result.startswith(f"{work}\n")
    assert (work / "here.txt").read_text() == "made\n"
    assert "not for agents" not in result
    assert "No such file" in result
    assert "Read-only file system" in result
    assert not Path("/usr/local/holdfast-x").exists()
    assert "Commands run in a sandbox" in system
    assert "have no network" in system


@boxed
@pytest.mark.parametrize("how", ["option", "environment"])
def test_the_sandbox_can_be_turned_off(work: Path, tmp_path: Path, how: str) -> None:
    (tmp_path / "other.txt").write_text("seen")
    option = ["--sandbox", "off"] if how == "option" else []
    env = {"HOLDFAST_SANDBOX": "off"} if how == "environment" else {}
    with ModelServer([terminal(f"cat {tmp_path}/other.txt"), text("Done.")]) as server:
        ended = command("run", "x", *option, *options(server, work), **env)
        assert ended.returncode == 0
        assert "sandbox" not in ended.stderr
        assert results(server)[0].startswith("seen")
        assert "in a sandbox" not in server.requests[0].messages[0]["content"]


@boxed
def test_a_mount_shows_a_folder_and_may_be_changed_only_if_it_says_so(
    work: Path, tmp_path: Path
) -> None:
    for name in ("data", "out"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text(name)
    script = "; ".join(
        [f"cat {tmp_path}/data/a.txt {tmp_path}/out/a.txt"]
        + [f"echo x > {tmp_path}/{name}/b.txt" for name in ("data", "out")]
    )
    mounts = ["--mount", f"{tmp_path}/data", "--mount", f"{tmp_path}/out:rw"]
    with ModelServer([terminal(script), text("Done.")]) as server:
        ended = command("run", "x", *mounts, *options(server, work))
        assert ended.returncode == 0, ended.stderr
        assert f"change this folder, {tmp_path}/out alone" in ended.stderr
        assert results(server)[0].startswith("dataout")
        system = server.requests[0].messages[0]["content"]
        assert f"can change your working directory, {tmp_path}/out, /tmp alone" in system
    assert (tmp_path / "out" / "b.txt").exists()
    assert not (tmp_path / "data" / "b.txt").exists()


@boxed
def test_the_toolchains_in_path_work_in_the_sandbox(work: Path, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    (tools / "bin").mkdir(parents=True)
    (tools / "lib").mkdir()
    (tools / "lib" / "words").write_text("hello from a toolchain\n")
    program = tools / "bin" / "greet"
    program.write_text(f"#!/bin/sh\ncat {tools}/lib/words\n")
    program.chmod(0o755)
    path = f"{tools}/bin:{os.environ['PATH']}"
    script = f"greet; {sys.executable} -c 'print(2 * 21)'"
    with ModelServer([terminal(script), text("Done.")]) as server:
        venv = {"VIRTUAL_ENV": str(Path(sys.prefix))}
        ended = command("run", "x", *options(server, work), PATH=path, **venv)
        assert ended.returncode == 0, ended.stderr
        assert results(server)[0].startswith("hello from a toolchain\n42\n")


@boxed
def test_git_works_below_the_root_of_a_repository_which_cannot_be_changed(tmp_path: Path) -> None:
    root = tmp_path / "repository"
    (root / "part").mkdir(parents=True)
    (root / "top.txt").write_text("top\n")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", "-C", str(root)]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)
    script = "git log --oneline | wc -l; git status --short; cat ../top.txt; echo x > ../top.txt"
    with ModelServer([terminal(script), text("Done.")]) as server:
        ended = command("run", "x", *options(server, root / "part"))
        assert ended.returncode == 0, ended.stderr
        assert results(server)[0].startswith("1\ntop\n")
    assert (root / "top.txt").read_text() == "top\n"


@boxed
def test_commits_have_the_users_name_although_the_home_folder_is_not_shown(
    work: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text("[user]\nname = Ann Ames\nemail = ann@example.com\n")
    subprocess.run(["git", "init", "-q", str(work)], check=True)
    script = (
        "git add -A; git commit -q --allow-empty -m x; git log --format='%an %ce';"
        f" ls {home}; echo $HOME"
    )
    with ModelServer([terminal(script), text("Done.")]) as server:
        ended = command("run", "x", *options(server, work), HOME=str(home))
        assert ended.returncode == 0, ended.stderr
        [result] = results(server)
    assert result.startswith("Ann Ames ann@example.com\n")
    assert ".gitconfig" not in result
    assert f"\n{home}\n" not in result


@boxed
def test_a_folder_that_holds_too_much_is_refused_with_a_way_out() -> None:
    with ModelServer([text("Done.")]) as server:
        ended = command("run", "x", *options(server, Path("/")))
    assert (ended.returncode, server.requests) == (2, [])
    assert "'/' cannot be writable in a sandbox" in ended.stderr
    assert "--sandbox off" in ended.stderr


@boxed
def test_what_the_sandbox_denied_names_the_option_that_allows_it(
    work: Path, tmp_path: Path
) -> None:
    for name in ("data", "out"):
        (tmp_path / name).mkdir()
    (tmp_path / "data" / "a.txt").write_text("x")
    script = [
        terminal(f"echo x > {tmp_path}/out/x"),
        terminal(f"echo x > {tmp_path}/out/y"),
        terminal("touch /usr/local/holdfast-x"),
        terminal(f"cat {tmp_path}/data/a.txt"),
        terminal("cat /etc/shadow; cat /no/such/file"),
        text("Done."),
    ]
    with ModelServer(script) as server:
        ended = command("run", "x", *options(server, work))
    assert ended.stdout.count(f"--mount {tmp_path}/out:rw") == 1
    assert "the system's folders from changes: only --sandbox off allows them" in ended.stdout
    assert f"The sandbox does not show {tmp_path}/data/a.txt: --mount {tmp_path}" in ended.stdout
    assert "--mount /etc/shadow" not in ended.stdout
    assert "--mount /no" not in ended.stdout


@pytest.mark.parametrize(
    ("output", "option"),
    [
        ("curl: (6) Could not resolve host: example.com", "--network example.com"),
        ("curl: (7) Failed to connect to example.com port 443 after 0 ms", "--network example.com"),
        ("ssh: Could not resolve hostname a.b.c: Name or service not known", "--network HOST"),
        ("npm error getaddrinfo ENOTFOUND registry.npmjs.org", "--network registry.npmjs.org"),
        ("wget: unable to resolve host address ‘example.org’", "--network example.org"),  # noqa: RUF001
        ("dial tcp: lookup proxy.golang.org: no such host", "--network proxy.golang.org"),
        ("HTTPSConnectionPool(host='pypi.org', port=443): Max retries", "--network pypi.org"),
        ("OSError: [Errno 101] Network is unreachable", "--network HOST"),
        ("touch: cannot touch '/srv/x': Read-only file system", "--mount /srv:rw"),
        ("bash: /srv/no/such/x: Read-only file system", "--mount /srv:rw"),
        ("mkdir: cannot create directory ‘/srv/x’: Read-only file system", "--mount /srv:rw"),  # noqa: RUF001
        ("bash: {parent}/other/x: No such file or directory", "--mount {parent}/other:rw"),
        ("ls: {parent}/other: No such file or directory", "--mount {parent}/other does"),
        ("cat: {parent}/shown/x: No such file or directory", ""),
        ("cat: /root/.ssh: No such file or directory", ""),
        ("touch: cannot touch '/usr/x': Read-only file system", "only --sandbox off"),
        ("rm: cannot remove ‘/etc/motd’: Read-only file system", "only --sandbox off"),  # noqa: RUF001
        ("bash: /newfile: Read-only file system", "only --sandbox off"),
        ("cat: {work}/x: No such file or directory", ""),
        ("all is well", ""),
    ],
)
def test_advice_names_the_host_or_the_folder(work: Path, output: str, option: str) -> None:
    mounted_folder = work.parent / "shown"
    mounted_folder.mkdir()
    (work.parent / "other").mkdir()
    advice = cli_sandbox.Advice(work, [Mount(str(mounted_folder))])
    places = {"work": work, "parent": work.parent}
    option = option.format(**places)
    result = ToolResult(output.format(**places), meta={"exitCode": 1})
    event = ToolCallFinished(
        seq=1, id="1", timestamp=datetime.now(UTC), call_id="1.0", result=result
    )
    line = advice.about(event)
    assert (option in line) if option else line == ""
    assert advice.about(event) == ""  # each advice appears once


@boxed
def test_the_command_that_continues_has_the_same_sandbox(work: Path, tmp_path: Path) -> None:
    store = ["--store", str(tmp_path / "s.db")]
    mounts = ["--mount", "/opt", "--mount", "/srv:rw", "--network", "example.com"]
    with ModelServer([text("Done.")]) as server:
        ended = command("run", "x", "--sandbox", "require", *mounts, *store, *options(server, work))
    assert ended.returncode == 0, ended.stderr
    flags = "--sandbox require --network example.com --mount /opt --mount /srv:rw"
    assert flags in ended.stderr.splitlines()[-1]


# --- without a sandbox ---


def test_without_a_sandbox_and_a_terminal_nothing_runs(work: Path) -> None:
    with ModelServer([text("Done.")]) as server:
        ended = command("run", "x", *options(server, work), program=WITHOUT)
        assert ended.returncode == 2
        assert "no terminal to ask at" in ended.stderr
        assert "--sandbox off" in ended.stderr
        assert "the program bwrap is missing. Install bubblewrap" in ended.stderr
        assert len(ended.stderr.splitlines()) == 1
        assert server.requests == []
        off = command("run", "x", "--sandbox", "off", *options(server, work), program=WITHOUT)
        assert (off.returncode, "sandbox" in off.stderr) == (0, False)


def test_required_means_that_nothing_runs_without_it(work: Path) -> None:
    with ModelServer([text("Done.")]) as server:
        words = ["run", "x", "--sandbox", "require", *options(server, work)]
        ended = command(*words, program=WITHOUT)
        assert ended.returncode == 2
        assert ended.stderr.startswith("holdfast: --sandbox require: No sandbox can be made")
        assert server.requests == []


class Unboxed(Typist):
    """A user at the terminal of a machine without support for a sandbox."""

    program = WITHOUT


def test_without_a_sandbox_commands_that_may_do_more_than_read_ask_first(work: Path) -> None:
    script = [
        terminal("ls"),
        calls(("write_file", {"path": "a.txt", "content": "x"})),
        terminal("echo one > b.txt"),
        terminal("frobnicate"),
        text("Done."),
    ]
    with ModelServer(script) as server:
        typist = Unboxed("run", "x", *options(server, work), HOLDFAST_SANDBOX="")
        try:
            typist.sees("Warning: there is no sandbox, so commands that may do more than read")
            typist.sees("--sandbox off")
            before = typist.sees(PROMPT)  # not for ls and not for the file tool
            assert (work / "a.txt").exists()
            assert "echo one > b.txt" in before
            typist.types("y\n")
            typist.sees("frobnicate")
            typist.sees(PROMPT)
            typist.types("n\n")
            typist.sees("[Rr]eason|why")
            typist.types("no\n")
            assert typist.leaves() == 0
        finally:
            typist.process.kill()
            typist.process.wait()
            os.close(typist.master)
    assert (work / "b.txt").read_text() == "one\n"


# --- options that do not fit ---


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--sandbox", "maybe"], "argument --sandbox: invalid choice: 'maybe'"),
        (["--sandbox", "off", "--network", "a.b"], "--network is for the sandbox"),
        (["--sandbox", "off", "--mount", "/opt"], "--mount is for the sandbox"),
        (["--allow-outside"], "--allow-outside needs --sandbox off"),
        (
            ["--mount", "/no/such"],
            "--mount '/no/such': The mount's source '/no/such' does not exist",
        ),
        (["--mount", "/"], "--mount '/': A mount cannot be the root folder"),
        (["--server", "http://127.0.0.1:9", "--sandbox", "off"], "--sandbox cannot be combined"),
        (["--server", "http://127.0.0.1:9", "--network", "x.y"], "--network cannot be combined"),
        (["--server", "http://127.0.0.1:9", "--mount", "/opt"], "--mount cannot be combined"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_does_not_fit_is_said_before_anything_runs(
    work: Path, arguments: list[str], words: str
) -> None:
    with ModelServer([text("Done.")]) as server:
        model = [] if "--server" in arguments else options(server, work)
        ended = command("run", "x", *arguments, *model)
        assert (ended.returncode, server.requests) == (2, [])
    assert words in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_an_unknown_word_in_the_environment_is_refused(work: Path) -> None:
    with ModelServer([text("Done.")]) as server:
        ended = command("run", "x", *options(server, work), HOLDFAST_SANDBOX="on")
    assert (ended.returncode, server.requests) == (2, [])
    assert "HOLDFAST_SANDBOX takes auto, off, require, not 'on'" in ended.stderr


# --- the mounts ---


def mount_sources(env: dict[str, str], workdir: Path, *mount_options: str) -> list[str]:
    """Return the sources of the mounts for these options and variables."""
    return [mount.source for mount in cli_sandbox.mounts(mount_options, env, workdir)]


def test_a_home_folder_and_folders_with_secrets_are_not_mounted(tmp_path: Path) -> None:
    home = tmp_path / "home"
    work = home / "src" / "tool"
    for name in ("bin", ".cargo/bin", ".local/bin", ".pyenv/shims", "src/tool/node_modules/.bin"):
        (home / name).mkdir(parents=True)
    (home / ".cargo" / "credentials.toml").write_text("token")
    path = [f"{home}/{name}" for name in ("bin", ".cargo/bin", ".local/bin", ".pyenv/shims")]
    path += [f"{work}/node_modules/.bin", "/usr/bin", "relative", "", "/no/such"]
    sources = mount_sources({"HOME": str(home), "PATH": ":".join(path), "GOROOT": str(home)}, work)
    assert sources == [f"{home}/{name}" for name in (".cargo/bin", ".local/bin", ".pyenv", "bin")]


def test_a_working_tree_elsewhere_is_mounted_with_its_repository(tmp_path: Path) -> None:
    main_tree, tree = tmp_path / "main", tmp_path / "tree"
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run([*git, "init", "-q", str(main_tree)], check=True)
    inside = [*git, "-C", str(main_tree)]
    subprocess.run([*inside, "commit", "-q", "--allow-empty", "-m", "first"], check=True)
    subprocess.run([*inside, "worktree", "add", "-q", str(tree)], check=True)
    assert mount_sources({}, tree) == [str(main_tree / ".git")]
    assert mount_sources({}, main_tree) == []


# --- the network ---


@boxed
def test_commands_reach_the_named_hosts_alone(work: Path) -> None:
    with ModelServer([text("a page")]) as page:
        port = page.url.rpartition(":")[2].partition("/")[0]
        fetch = "import sys, urllib.request as r\nprint(r.urlopen(sys.argv[1], b'{}').status)\n"
        (work / "fetch.py").write_text(fetch)
        python = "/usr/bin/python3"
        script = [
            terminal(f"{python} fetch.py http://127.0.0.1:{port}/v1/chat/completions"),
            terminal(f"{python} fetch.py http://refused.example.com/"),
            text("Done."),
        ]
        allowed = ["--network", f"127.0.0.1:{port}"]
        for network, first, advice in (
            (allowed, "200\n", "--network refused.example.com"),
            ([], "Traceback", "--network HOST"),
        ):
            with ModelServer(script) as server:
                ended = command("run", "x", *network, *options(server, work))
                assert ended.returncode == 0, ended.stderr
                reached, refused = results(server)
            assert reached.startswith(first), reached
            assert advice in refused + ended.stdout
            assert len(page.requests) == 1


# --- leftovers of an earlier session ---


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Make a home directory with a private key and the folder `project`."""
    folder = tmp_path / "home"
    (folder / "project").mkdir(parents=True)
    (folder / ".ssh").mkdir()
    (folder / ".ssh" / "id_ed25519").write_text("private\n")
    return folder


@pytest.mark.parametrize(
    "content",
    [
        "gitdir: {home}/.ssh\n",
        "gitdir: {home}\n",
        "gitdir: /\n",
        "gitdir: a\0b\n",
        f"gitdir: {'x' * 300}\n",
        "gitdir: {home}/project/fake\n",
    ],
)
def test_a_git_file_that_a_command_wrote_shows_nothing(home: Path, content: str) -> None:
    work = home / "project"
    (work / ".git").write_text(content.format(home=home))
    (work / "fake").mkdir()
    (work / "fake" / "gitdir").write_text(f"{work}/.git\n")
    (work / "fake" / "commondir").write_text(f"{home}/.ssh\n")
    assert mount_sources({"HOME": str(home)}, work) == []


def test_a_link_in_the_work_folder_shows_nothing(home: Path) -> None:
    work, other = home / "project", home / "other"
    (other / "bin").mkdir(parents=True)
    (other / "lib").mkdir()
    (work / ".venv").symlink_to(other)
    (home / "near").symlink_to(work / ".venv")
    env = {"HOME": str(home), "VIRTUAL_ENV": f"{work}/.venv", "PATH": f"{work}/.venv/bin"}
    assert mount_sources(env, work) == []
    assert mount_sources({"HOME": str(home), "PATH": f"{home}/near/bin"}, work) == []
    # For comparison: without a link through the working directory it is a toolchain.
    assert mount_sources({"HOME": str(home), "PATH": f"{other}/bin"}, work) == [str(other)]


def test_settings_of_a_virtual_environment_show_an_installation_alone(home: Path) -> None:
    work = home / "project"
    (work / ".venv" / "bin").mkdir(parents=True)
    (home / "letters" / "bin").mkdir(parents=True)
    (home / "letters" / "private").mkdir()
    env = {"HOME": str(home), "VIRTUAL_ENV": f"{work}/.venv"}
    for python_home in (f"{home}/letters/bin", f"{home}/.ssh/bin", "a\0b"):
        (work / ".venv" / "pyvenv.cfg").write_text(f"home = {python_home}\n")
        assert mount_sources(env, work) == []
    (home / "python" / "bin").mkdir(parents=True)
    (home / "python" / "lib").mkdir()
    (work / ".venv" / "pyvenv.cfg").write_text(f"home = {home}/python/bin\n")
    assert mount_sources(env, work) == [f"{home}/python"]


def test_programs_in_path_do_not_show_what_lies_beside_them(home: Path) -> None:
    code = home / "code"
    for name in ("bin", "lib", "shop"):
        (code / name).mkdir(parents=True)
    env = {"HOME": str(home), "PATH": f"{code}/bin"}
    assert mount_sources(env, home / "project") == [f"{code}/bin"]
    (code / "shop").rmdir()
    assert mount_sources(env, home / "project") == [str(code)]


@boxed
def test_the_home_folder_is_no_work_folder(home: Path) -> None:
    for folder in (home, home.parent):
        with ModelServer([text("Done.")]) as server:
            ended = command("run", "x", *options(server, folder), HOME=str(home))
        assert (ended.returncode, server.requests) == (2, [])
        assert "all of your home folder" in ended.stderr
        assert "--sandbox off" in ended.stderr
