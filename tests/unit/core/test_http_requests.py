"""Addresses, statuses and waits of HTTP requests."""

import pytest

from rl4dialog.core.async_calls import wait_s
from rl4dialog.core.http_requests import has_credentials, is_http_address, is_overload, is_temporary, retry_after_s


@pytest.mark.parametrize("url", ["http://localhost:8000", "https://a.example/b?c=d", "http://[::1]:8000/v1"])
def test_addresses_are_accepted(url):
    assert is_http_address(url) and not has_credentials(url)


@pytest.mark.parametrize(
    "url", ["", "localhost:8000", "ftp://a.example", "http://", "http://[::1/v1", "http://a:99999", "http://a:0"]
)
def test_other_texts_are_no_addresses(url):
    assert not is_http_address(url)


@pytest.mark.parametrize("url", ["http://me:pw@localhost", "http://me@localhost"])
def test_credentials_are_found(url):
    assert has_credentials(url)


def test_timeouts_overload_and_failures_of_the_server_are_waited_for():
    temporary = [status for status in range(200, 600) if is_temporary(status)]
    assert temporary == [408, 409, 425, 429, *range(500, 600)]
    assert [status for status in temporary if is_overload(status)] == [429, 503]
    assert [wait_s(n, 0.5) for n in (1, 2, 3)] == [0.5, 1.0, 2.0]
    assert [wait_s(n, 0.5, at_least_s=0.8) for n in (1, 2, 3)] == [0.8, 1.0, 2.0]


@pytest.mark.parametrize(
    ("header", "seconds"), [("", 0), ("7", 7), ("3600", 60), ("Wed, 21 Oct 2026 07:28:00 GMT", 0), ("-1", 0)]
)
def test_retry_after_is_read_up_to_a_minute(header, seconds):
    assert retry_after_s(header) == seconds
