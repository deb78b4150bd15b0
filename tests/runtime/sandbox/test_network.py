"""Allow-lists: the one form of a host, public addresses, and the entries of a list."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from holdfast.errors import ConfigurationError
from holdfast.runtime.sandbox.network import AllowList, is_public, parse_host


def allows(entries: list[str], host: str, port: int = 443) -> bool:
    """Return True if the list allows a host in the spelling of a request."""
    return not AllowList(entries).refusal(parse_host(host), port)


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("PyPI.org", "pypi.org"),
        ("pypi.org.", "pypi.org"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("_dmarc.example.com", "_dmarc.example.com"),
        ("127.0.0.1", "127.0.0.1"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("::FFFF:7f00:1", "::ffff:7f00:1"),
    ],
)
def test_a_host_has_one_form(text: str, form: str) -> None:
    host = parse_host(text)
    assert host == form if isinstance(host, str) else host == ip_address(form)


@pytest.mark.parametrize(
    "text",
    [
        *("", ".", "..", "pypi.org..", ".pypi.org", "a..b", "-a.com", "a-.com", "a" * 64 + ".com"),
        *(f"{'a.' * 127}com", "pypi.org\0.evil.com", "pypi.org%00.evil.com", "a b.com", "a\tb.com"),
        *("user@pypi.org", "pypi.org:443", "pypi.org/", "pypi.org\\.evil.com", "[pypi.org]"),
        *("[[::1]]", "[::1]", "fe80::1%eth0", "fe80::1%25eth0", "::1%lo"),
        # other spellings of 127.0.0.1 that a system's resolver takes
        *("127.1", "2130706433", "0x7f000001", "0x7f.0.0.1", "0177.0.0.1", "127.0.0.0x1", "0"),
        *(
            "127.0.0.1.",
            "127.0.0.1.5",
            "\uff11\uff12\uff17.0.0.1",
            "127\u30020\u30020\u30021",
            "\u2460\u2461\u2466.0.0.1",
        ),
        # letters that IDNA would map, each to another host in some program
        *(
            "pypi\u3002org",
            "\uff50ypi.org",
            "fa\u00df.de",
            "b\u00fccher.example",
            "pypi.org\u200d",
            "pYp\u0131.org",
        ),
    ],
)
def test_every_other_spelling_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_host(text)


@pytest.mark.parametrize(
    "address",
    [
        *("0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.100.100.200", "127.0.0.1"),
        *("127.255.255.254", "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.192"),
        *("192.0.2.1", "192.88.99.1", "192.168.1.1", "198.18.0.1", "198.51.100.1", "203.0.113.1"),
        *("224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255", "168.63.129.16"),
        *("::", "::1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::127.0.0.1", "::ffff:0:127.0.0.1"),
        *("64:ff9b::127.0.0.1", "64:ff9b::8.8.8.8", "64:ff9b:1::a9fe:a9fe", "100::1"),
        *("2001::1", "2001:0:7f00:1::", "2001:10::1", "2001:db8::1", "2002:7f00:1::", "2002:808::"),
        *("3fff::1", "5f00::1", "fc00::1", "fd00:ec2::254", "fe80::1", "fec0::1", "ff02::1"),
        *("2600::5efe:7f00:1", "2600::200:5efe:a00:1", "4000::1"),
    ],
)
def test_an_address_that_is_special_or_carries_another_is_not_public(address: str) -> None:
    assert not is_public(ip_address(address))


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "8.8.8.8", "151.101.0.223", "2606:4700::1111", "2a04:4e42::223"]
)
def test_a_usual_address_is_public(address: str) -> None:
    assert is_public(ip_address(address))


def test_an_entry_without_a_port_is_for_the_web_alone() -> None:
    assert allows(["pypi.org"], "pypi.org", 443)
    assert allows(["pypi.org"], "PYPI.org.", 80)
    assert not allows(["pypi.org"], "pypi.org", 22)
    assert allows(["github.com:22"], "github.com", 22)
    assert not allows(["github.com:22"], "github.com", 443)
    assert allows(["example.com:*"], "example.com", 5432)


def test_an_empty_list_allows_nothing() -> None:
    assert not allows([], "pypi.org")


def test_a_name_is_not_a_suffix_and_a_wildcard_not_the_name_itself() -> None:
    for host in ("evilpypi.org", "a.pypi.org", "pypi.org.evil.com", "pypi.orgx", "pypi-org"):
        assert not allows(["pypi.org"], host)
    for host in ("a.example.com", "a.b.example.com", "A.EXAMPLE.COM."):
        assert allows(["*.example.com"], host)
    for host in ("example.com", "evilexample.com", "example.com.evil.org", "a.example.org"):
        assert not allows(["*.example.com"], host)


def test_an_address_is_named_by_an_address_alone() -> None:
    assert allows(["10.1.2.3"], "10.1.2.3")
    assert allows(["10.1.0.0/16"], "10.1.2.3")
    assert allows(["[fd00::1]:8080"], "fd00:0::1", 8080)
    assert allows(["fd00::/64"], "fd00::5")
    assert not allows(["10.1.0.0/16"], "10.2.0.1")
    assert not allows(["pypi.org"], "151.101.0.223")
    assert not allows(["127.0.0.1"], "::ffff:127.0.0.1")


def test_localhost_names_the_loopback_addresses_too() -> None:
    listed = AllowList(["localhost:8000"])
    assert not listed.address_refusal("localhost", ip_address("127.0.0.1"), 8000)
    assert not listed.address_refusal("localhost", ip_address("::1"), 8000)
    assert listed.address_refusal("localhost", ip_address("127.0.0.1"), 8001)
    assert listed.address_refusal("localhost", ip_address("127.0.0.2"), 8000)


def test_a_name_may_resolve_to_a_private_address_only_if_that_is_named() -> None:
    private = ip_address("10.1.2.3")
    refusal = AllowList(["git.corp"]).address_refusal("git.corp", private, 443)
    assert "git.corp resolves to 10.1.2.3" in refusal
    assert "--network 10.1.2.3" in refusal
    assert not AllowList(["git.corp", "10.1.0.0/16"]).address_refusal("git.corp", private, 443)
    assert AllowList(["git.corp:*", "10.1.0.0/16"]).address_refusal("git.corp", private, 22)


def test_on_a_named_nat64_prefix_the_address_inside_counts() -> None:
    listed = AllowList(["pypi.org", "64:ff9b::/96"])
    assert not listed.address_refusal("pypi.org", ip_address("64:ff9b::8.8.8.8"), 443)
    assert listed.address_refusal("pypi.org", ip_address("64:ff9b::127.0.0.1"), 443)
    assert listed.address_refusal("pypi.org", ip_address("64:ff9b::a9fe:a9fe"), 443)


def test_an_address_of_this_machine_needs_a_name_even_if_it_is_public() -> None:
    own = ip_address("8.8.8.8")
    assert "this machine" in AllowList(["a.com"]).address_refusal("a.com", own, 443, own=True)
    assert not AllowList(["8.8.8.8"]).address_refusal("a.com", own, 443, own=True)


def test_a_refusal_says_what_would_allow_the_host() -> None:
    listed = AllowList(["pypi.org"])
    assert listed.refusal("evil.com", 443) == (
        "evil.com:443 is not allowed in this sandbox. To allow it: --network evil.com, or"
        " SandboxedRuntime(network=[..., 'evil.com'])."
    )
    assert "--network pypi.org:22," in listed.refusal("pypi.org", 22)
    assert "--network [::1]:22," in listed.refusal(ip_address("::1"), 22)


@pytest.mark.parametrize(
    "entry",
    [
        *("", "*", "*.", "*.com", "*.*.com", "a.*.com", "*pypi.org", "p?pi.org", "*.10.1.2.3"),
        *("https://pypi.org", "pypi.org/simple", "user@pypi.org", "pypi.org:", "pypi.org:0"),
        *("pypi.org:65536", "pypi.org:http", "pypi.org:443:80", "pypi.org:+80", "pypi .org"),
        *("0177.0.0.1", "127.1", "10.0.0.1/8", "10.0.0.0/33", "[pypi.org]", "[::1", "[::1]x"),
        *("fe80::1%eth0", "b\u00fccher.example", "pypi.org\0", "10.0.0.0/8/8", "[10.0.0.1]"),
    ],
)
def test_an_entry_that_cannot_be_checked_is_refused_by_its_name(entry: str) -> None:
    with pytest.raises(ConfigurationError, match="network") as raised:
        AllowList(["pypi.org", entry])
    assert repr(entry) in str(raised.value)


def test_a_text_is_not_a_list_of_hosts() -> None:
    with pytest.raises(ConfigurationError, match=r"\['pypi.org'\]"):
        AllowList("pypi.org")
