"""HTTP requests that may fail: addresses, limits of answers, failures that another attempt may repair, and waits."""

from __future__ import annotations

import urllib.parse

MAX_RETRY_AFTER_S = 60.0
"""A server that asks for a longer wait is asked again after this time."""
MAX_ANSWER_BYTES = 4 * 2**20
UNCOMPRESSED = {"Accept-Encoding": "identity"}
"""Headers of requests whose answers are limited: a few compressed bytes could fill the memory."""


class UnreadAnswer(Exception):
    """An answer that is not read to its end. The message is the rest of a sentence that starts with the address."""


def check_answer(n_bytes: int, encoding: str) -> None:
    """Check an answer while it is read.

    Args:
        n_bytes: Number of its bytes so far.
        encoding: Its header ``Content-Encoding``; empty without one.

    Raises:
        UnreadAnswer: If it is too large or compressed.
    """
    if encoding not in ("", "identity"):
        raise UnreadAnswer(f"answered with the Content-Encoding {encoding[:20]!r}; answers must not be compressed")
    if n_bytes > MAX_ANSWER_BYTES:
        raise UnreadAnswer(f"answered with more than {MAX_ANSWER_BYTES} bytes")


def is_http_address(url: str) -> bool:
    """Whether a text is an address of HTTP or HTTPS, with a host and a possible port."""
    try:
        parts = urllib.parse.urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # for half an IPv6 address, or a port that is not one
        return False


def has_credentials(url: str) -> bool:
    """Whether an address contains a user name or a password."""
    parts = urllib.parse.urlsplit(url)
    return bool(parts.username or parts.password)


def is_overload(status: int) -> bool:
    """Whether an HTTP status asks for fewer requests, or for the same one later."""
    return status in (429, 503)


def is_temporary(status: int) -> bool:
    """Whether the same request may succeed later: timeouts, overload, and failures of the server."""
    return is_overload(status) or status in (408, 409, 425) or status >= 500


def retry_after_s(header: str) -> float:
    """Return the seconds in a ``Retry-After`` header, up to a minute; 0 for a date, or without one."""
    return min(float(header), MAX_RETRY_AFTER_S) if header.isdecimal() else 0.0


def wait_s(n_failures: int, first_s: float, at_least_s: float = 0.0) -> float:
    """Return the seconds to wait before another attempt.

    Args:
        n_failures: Number of failed attempts so far.
        first_s: Wait after the first failure, doubled for each further one.
        at_least_s: Shortest wait, for which the server asked.
    """
    return float(max(first_s * 2 ** (n_failures - 1), at_least_s))
