"""Programs that reach beyond files: the network, the system."""

from __future__ import annotations

import re
from collections.abc import Mapping

from holdfast.agent.security.options import options
from holdfast.agent.security.paths import HIGH, MEDIUM, UNKNOWN
from holdfast.agent.security.use import Check, Use, reach
from holdfast.agent.security.words import Word

_CURL_VALUED = "AbcCdDeEFHhIKmoPQrtTuUwXxyYz"
_CURL_LONG = (
    "--user-agent", "--cookie", "--cookie-jar", "--data", "--data-ascii", "--data-binary", "--data-raw", "--data-urlencode", "--dump-header", "--referer", "--form", "--form-string", "--header", "--config", "--max-time",
    "--output", "--output-dir", "--quote", "--range", "--upload-file", "--user", "--proxy", "--write-out", "--request", "--url", "--json", "--connect-timeout", "--retry", "--retry-delay", "--cacert", "--cert", "--key",
    "--resolve", "--connect-to", "--interface", "--unix-socket", "--abstract-unix-socket", "--stderr", "--trace", "--trace-ascii", "--proto", "--max-redirs", "--limit-rate", "--netrc-file", "--oauth2-bearer", "--url-query", "--variable",
)  # fmt: skip


def _curl(use: Use) -> None:
    found = options(use.args, _CURL_VALUED.replace("I", "").replace("h", ""), _CURL_LONG)
    has = found.has
    if found.unsure:
        use.high("is given what is not known beforehand, which may be an address or an option")
    if has(
        "-K",
        "--config",
        "-x",
        "--proxy",
        "--resolve",
        "--connect-to",
        "--unix-socket",
        "--abstract-unix-socket",
        "--preproxy",
        "--socks5",
        "--socks4",
        "-U",
        "--variable",
        "--doh-url",
        "-Q",
        "--quote",
        "--netrc",
        "-n",
        "--netrc-file",
        "--engine",
    ):
        use.high("goes another way than its address says")
    sends = ""
    bodies = found.values(
        "-d",
        "--data",
        "--data-ascii",
        "--data-binary",
        "--data-raw",
        "--data-urlencode",
        "-F",
        "--form",
        "--form-string",
        "--json",
        "-T",
        "--upload-file",
        "--url-query",
    )
    if bodies or has("-d", "--data", "-F", "--form", "-T", "--upload-file", "--json"):
        sends = "sends data"
    if any(word.text.upper() not in ("GET", "HEAD", "OPTIONS") for word in found.values("-X", "--request")):
        sends = "asks for a change or sends data"
    if has("-u", "--user", "--oauth2-bearer", "-b", "--cookie", "--cert", "-E", "--key"):
        sends = sends or "gives credentials"
    for word in found.values("-H", "--header", "-A", "--user-agent", "-e", "--referer"):
        if not word.known:
            use.high("sends what is not known beforehand")
        if re.match(r"(?:proxy-)?authorization|cookie|x-.*(?:key|token)|@", word.text, re.IGNORECASE):
            sends = sends or "gives credentials"
    for word in bodies:
        file = word.text[1:] if word.text.startswith("@") else word.text.partition("=@")[2] or word.text.partition("=<")[2]
        if file:
            use.reads([Word(file.partition(";")[0], word.known)])
    use.reads(found.values("-T", "--upload-file"))
    addresses = [*found.operands, *found.values("--url")]
    if not addresses:
        use.low()
    for word in addresses:
        reach(use, word, sends)
    use.writes(
        found.values("-o", "--output", "--output-dir", "-D", "--dump-header", "-c", "--cookie-jar", "--stderr", "--trace", "--trace-ascii")
    )
    if has("-O", "--remote-name", "--remote-name-all", "-J"):
        use.medium("writes a file by the name that the other side gives it")


def _wget(use: Use) -> None:
    found = options(
        use.args,
        "oOaeitTQPUlADIXBw",
        (
            "--output-document",
            "--post-data",
            "--post-file",
            "--body-data",
            "--body-file",
            "--header",
            "--user-agent",
            "--execute",
            "--input-file",
            "--directory-prefix",
            "--method",
            "--user",
            "--password",
            "--output-file",
            "--timeout",
            "--tries",
        ),
    )
    has = found.has
    if found.unsure or has("-e", "--execute", "-i", "--input-file", "--use-askpass", "--config", "--ca-certificate", "-B"):
        use.high("is given what is not known beforehand, or goes another way than its address says")
    sends = "sends data" if has("--post-data", "--post-file", "--body-data", "--body-file", "--method") else ""
    if has("--header", "--user", "--password", "--load-cookies"):
        sends = sends or "gives credentials"
    use.reads(found.values("--post-file", "--body-file"))
    for word in found.operands:
        reach(use, word, sends)
    out = found.values("-O", "--output-document", "-o", "--output-file", "-a", "-P", "--directory-prefix")
    use.writes(out)
    use.medium("fetches") if found.operands else use.low()


def _ping(use: Use) -> None:
    found = options(use.args, "cisWtMIw")
    for word in found.operands:
        if not word.known:
            use.high("may carry something out in a name")
    use.medium("asks another machine")


# --- the system ---


def _only(*reads: str, else_: str = "changes the system", rank: int = HIGH) -> Check:
    """Low for these first words, else as risky as `rank`."""

    def check(use: Use) -> None:
        first = next((word for word in use.args if not word.text.startswith("-") or word.text in reads), None)
        if (first is None and use.args and use.args[0].known and use.args[0].text in ("--version", "--help", "-V", "version")) or (
            first is not None and first.known and first.text in reads and all(word.known for word in use.args)
        ):
            use.low()
        else:
            use.note(rank, f"{use.name} {else_}")

    return check


def _kill(use: Use) -> None:
    if use.args and use.args[0].text in ("-l", "-L", "--list"):
        use.low()
        return
    words = [
        word
        for index, word in enumerate(use.args)
        if not (word.text.startswith("-") and index == 0) and not (index == 1 and use.args[0].text in ("-s", "-n"))
    ]
    for word in words:
        if not word.known or not re.fullmatch(r"%[\w%+-]*|\d+", word.text) or word.text in ("0", "1"):
            use.high("ends processes that are not known beforehand, or all of them")
    use.medium("ends a process")


def _crontab(use: Use) -> None:
    use.low() if [word.text for word in use.args] == ["-l"] else use.high("has something run later, unseen")


def _says_or_sets(use: Use) -> None:
    found = options(use.args, "dfrIu")
    if found.has("-s", "--set", "-F", "-b") or found.unsure or any(not word.text.startswith("+") for word in found.operands):
        use.high("changes the system")
    use.low()
    use.reads(found.values("-f", "-r") if use.name == "date" else [])


def _dpkg(use: Use) -> None:
    found = options(use.args)
    use.low() if found.given and found.given[0][0] in (
        "-l",
        "-L",
        "-s",
        "-S",
        "-q",
        "--list",
        "--status",
        "--search",
        "--listfiles",
        "--version",
    ) else use.high("changes what is installed on the system")


def _ip(use: Use) -> None:
    changes = ("add", "del", "delete", "set", "flush", "up", "down", "change", "replace", "netns", "exec", "-b", "-batch", "-force")
    use.high("changes the network") if any(not word.known or word.text in changes for word in use.args) else use.low()


def _docker(use: Use) -> None:
    reads = ("ps", "images", "logs", "inspect", "version", "info", "stats", "top", "port", "diff", "history", "search")
    _only(*reads, else_="runs or changes containers, which may reach all of the machine")(use)
    use.medium("shows what containers hold")


def _gh(use: Use) -> None:
    words = [word.text for word in use.args if word.known and not word.text.startswith("-")]
    if (
        len(words) > 1
        and words[1] in ("view", "list", "diff", "status", "checks")
        and words[0] in ("pr", "issue", "repo", "run", "release", "workflow")
        and all(word.known for word in use.args)
    ):
        use.medium("asks GitHub")
    else:
        use.high("acts on GitHub in the user's name")


_HIGH = {
    "runs on another machine": ("ssh", "scp", "sftp", "telnet", "ftp", "rsh", "rlogin", "mosh", "sshpass", "ssh-copy-id", "autossh", "lftp", "tftp", "ansible", "ansible-playbook"),
    "opens a connection": ("nc", "ncat", "netcat", "socat", "nmap", "masscan", "ngrok", "cloudflared", "chisel", "openvpn", "tor", "proxychains", "tcpdump", "tshark", "mail", "mailx", "sendmail", "mutt", "swaks", "rclone", "croc", "magic-wormhole", "wormhole"),
    "changes disks": ("mkfs", "fdisk", "sfdisk", "parted", "gparted", "mount", "umount", "losetup", "wipefs", "cryptsetup", "lvremove", "vgremove", "pvremove", "swapoff", "swapon", "mkswap", "blkdiscard", "badblocks", "fsck", "e2fsck", "tune2fs", "resize2fs", "hdparm", "mdadm", "zpool", "zfs", "btrfs", "debugfs", "fstrim", "partprobe"),
    "stops or restarts the machine": ("reboot", "shutdown", "halt", "poweroff", "init", "telinit", "kexec"),
    "ends processes by their names": ("pkill", "killall", "skill", "xkill", "fuser"),
    "changes users or rights": ("useradd", "userdel", "usermod", "groupadd", "groupdel", "groupmod", "passwd", "chpasswd", "visudo", "chsh", "chfn", "adduser", "deluser", "vipw", "newgrp", "setcap", "htpasswd", "gpasswd"),
    "changes the network or the kernel": ("iptables", "ip6tables", "nft", "ufw", "firewall-cmd", "route", "ifconfig", "sysctl", "modprobe", "insmod", "rmmod", "tc", "nmcli", "bpftool", "setenforce", "auditctl"),
    "has something run later, unseen": ("at", "batch", "anacron", "systemd-tmpfiles"),
    "handles keys and credentials": ("gpg", "gpg2", "ssh-keygen", "ssh-add", "ssh-agent", "security", "pass", "op", "vault", "secret-tool", "keyctl", "age", "openssl", "certbot"),
    "acts on machines elsewhere in the user's name": ("aws", "gcloud", "az", "terraform", "tofu", "pulumi", "heroku", "flyctl", "vercel", "netlify", "wrangler", "doctl", "helm", "eb", "sam", "serverless", "twine", "glab", "hub"),
    "fetches a program and runs it": ("uvx", "pipx", "bunx", "nix-shell", "nix", "snap", "flatpak", "brew", "yum", "dnf", "pacman", "apk", "zypper", "emerge", "conda", "mamba", "gem", "cpan", "easy_install", "port", "rustup", "nvm", "pyenv", "sdk"),
    "is an editor, which runs and writes what it is told": ("vi", "vim", "nvim", "view", "ex", "ed", "emacs", "nano", "pico", "joe", "micro"),
    "may run what it is told": ("m4", "xdg-open", "open", "start", "tmux", "screen", "gdbserver", "perf", "bpftrace", "systemtap", "stap", "dialog", "zsh-syntax", "logrotate", "run-parts", "update-alternatives", "ldconfig", "depmod", "ldd"),
    "changes a database": ("mysql", "psql", "mongosh", "mongo", "redis-cli", "mysqldump", "pg_dump", "dropdb", "createdb"),
}  # fmt: skip


def table() -> Mapping[str, Check]:
    """What is known of these programs, by name."""

    def always(what: str) -> Check:
        return lambda use: use.high(what)

    found: dict[str, Check] = {}
    for what, names in _HIGH.items():
        found.update(dict.fromkeys(names, always(what)))
    found.update(dict.fromkeys(("date", "hostname", "timedatectl", "hwclock", "domainname"), _says_or_sets))
    found.update(dict.fromkeys(("ping", "dig", "host", "nslookup", "traceroute", "whois", "mtr"), _ping))
    found.update(dict.fromkeys(("docker", "podman", "nerdctl", "docker-compose"), _docker))
    found.update(dict.fromkeys(("ip", "ss", "netstat"), _ip))
    found.update({
        "curl": _curl, "wget": _wget, "kill": _kill, "crontab": _crontab, "dpkg": _dpkg, "gh": _gh,
        "apt": _only("list", "show", "search", "policy", else_="changes what is installed on the system"),
        "apt-get": _only(else_="changes what is installed on the system"), "apt-cache": _only("search", "show", "policy", "depends", "rdepends", "madison", "showpkg"),
        "rpm": _only("-q", "-qa", "-qi", "-ql", else_="changes what is installed on the system"), "systemctl": _only("status", "show", "list-units", "list-timers", "list-unit-files", "is-active", "is-enabled", "is-failed", "cat"),
        "service": _only("--status-all"), "journalctl": _only(rank=MEDIUM, else_="shows the system's log"), "dmesg": _only(rank=MEDIUM, else_="shows the kernel's log"), "getent": _only("hosts", "services", "protocols", rank=MEDIUM, else_="shows users"),
        "kubectl": _only("get", "describe", "version", "explain", else_="acts on a cluster in the user's name"), "launchctl": _only("list"), "xclip": _only(rank=UNKNOWN, else_="reads or changes the clipboard"), "dc": _only(rank=UNKNOWN, else_="may run commands"), "pgrep": _only(rank=MEDIUM, else_="shows processes"),
    })  # fmt: skip
    return found
