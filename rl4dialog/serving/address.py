"""Addresses on which the servers of this package listen."""

from __future__ import annotations

import socket

from rl4dialog.core.errors import ConfigError


def check_address(host: str, port: int) -> None:
    """Check that a server can listen on an address."""
    if not 0 < port < 65536:
        raise ConfigError(f"--port must be a number from 1 to 65535, not {port}")
    try:
        kind, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(kind) as listener:
            # Allows a port that was closed a moment ago.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
    except OSError as error:
        other_host = "" if host == "127.0.0.1" else ", or --host 127.0.0.1"
        raise ConfigError(
            f"--host {host} --port {port}: cannot listen there ({error.strerror or error}); try another "
            f"--port{other_host}"
        ) from error


def web_address(host: str, port: int) -> str:
    """Return the address of a server as a browser needs it."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
