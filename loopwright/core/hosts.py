"""Hosts by their names and numbers, without asking anybody."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

Address = IPv4Address | IPv6Address


def literal_of(host: str) -> Address | None:
    """The address that a host is written as, or `None` for a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def is_loopback(host: str) -> bool:
    """Whether a host is this machine by its name or number, whatever a resolver says."""
    literal = literal_of(normal_host(host))
    return literal.is_loopback if literal else normal_host(host) == "localhost"


def normal_host(host: str) -> str:
    """A host in the one way in which it is compared: lower case, no brackets, no dot at its end."""
    bare = host.strip().removeprefix("[").removesuffix("]").removesuffix(".").lower()
    literal = literal_of(bare)
    return str(literal) if literal else bare
