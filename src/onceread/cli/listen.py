"""Take the port before anything slow happens: whoever connects waits in the queue until HTTP is up."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from typing import Any

from onceread.cli.errors import CommandError

BACKLOG = 2048

Address = tuple[Any, ...]  # the socket module's: host, port, and more for IPv6


def listen(host: str, port: int) -> list[socket.socket]:
    """Listening sockets for one host: one, or for ``localhost`` one for each of its addresses.

    Raises CommandError, having closed what it opened.
    """
    addresses = _resolve(host, port)
    sockets: list[socket.socket] = []
    problem: OSError | None = None
    for family, address in addresses:
        if port == 0 and sockets:  # all addresses of one name share the port that the first got
            address = (address[0], port_of(sockets), *address[2:])
        try:
            sockets.append(_open(family, address))
        except OSError as error:
            # This machine may have no IPv6; but a port that is taken on one address is taken.
            if error.errno == errno.EADDRINUSE or problem is None:
                problem = error
    if problem is not None and (not sockets or problem.errno == errno.EADDRINUSE):
        close(sockets)
        raise CommandError(_explain(problem, host, port)) from problem
    return sockets


def close(sockets: list[socket.socket]) -> None:
    for one in sockets:
        one.close()


def port_of(sockets: list[socket.socket]) -> int:
    return int(sockets[0].getsockname()[1])


def url_of(sockets: list[socket.socket]) -> str:
    """An address that a browser on this machine can open."""
    host = str(sockets[0].getsockname()[0])
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - it is compared, not bound
    return f"http://[{host}]:{port_of(sockets)}" if ":" in host else f"http://{host}:{port_of(sockets)}"


def _resolve(host: str, port: int) -> list[tuple[int, Address]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError):
        raise CommandError(
            f"--host {host} is not an address of this machine, nor a name that has one"
        ) from None
    addresses: list[tuple[int, Address]] = [(info[0], info[4]) for info in found]
    if host.lower() != "localhost":
        return addresses[:1]
    # It was let through without a key because only this machine can reach it: so be it.
    return [one for one in addresses if ipaddress.ip_address(str(one[1][0]).split("%")[0]).is_loopback]


def _open(family: int, address: Address) -> socket.socket:
    one = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name == "posix":  # elsewhere this option lets two servers share a port
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(address)
        one.listen(BACKLOG)
        one.setblocking(False)
    except BaseException:
        one.close()
        raise
    return one


def _explain(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} on {host} is taken: "
            "stop what uses it, or choose another by --port (0 takes any free one)"
        )
    if error.errno == errno.EACCES:
        return f"port {port} may not be bound by this user: choose one above 1023 by --port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--host {host} is not an address of this machine"
    return f"can't listen on {host}, port {port}: {error.strerror or error}"
