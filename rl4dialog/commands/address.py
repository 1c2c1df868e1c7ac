"""What ``rl4dialog ui`` and ``rl4dialog serve`` have in common: where they listen."""

from __future__ import annotations

import argparse
import sys


def add_address_arguments(parser: argparse.ArgumentParser, port: int) -> None:
    """Add ``--host``, ``--allow_host`` and ``--port`` with its default."""
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1, local only)")
    parser.add_argument(
        "--allow_host",
        action="append",
        default=[],
        metavar="NAME",
        help="additional host name that the server answers to, such as a proxy's; can be repeated",
    )
    parser.add_argument("--port", type=int, default=port, help=f"port to listen on (default: {port})")


def check_address_arguments(args: argparse.Namespace) -> None:
    """Check them, before a model is loaded."""
    from rl4dialog.serving.server import PageHosts, check_address

    check_address(args.host, args.port)
    PageHosts(args.host, args.port, args.allow_host)


def warn_of_visitors(args: argparse.Namespace, what: str) -> None:
    """Say what others can do, if the address is not that of this machine only."""
    if args.host not in ("127.0.0.1", "localhost", "::1"):
        print(f"Anyone who can reach {args.host} can {what}", file=sys.stderr)
