"""Where a service is: which URLs and keys are taken."""

from __future__ import annotations

import pytest

from gaoler.http.client import AddressError, AsyncClient, Client
from gaoler.http.client_address import Service, service_at


def test_a_url_may_have_a_port_and_a_path() -> None:
    assert service_at("https://[::1]:8/a/b/") == Service(True, "::1", 8, "/a/b")
    assert service_at("http://host") == Service(False, "host", None, "")


@pytest.mark.parametrize("url", ["https://[::1]:8/a/b", "http://host", "http://10.0.0.1:80"])
def test_a_url_comes_out_as_it_went_in(url: str) -> None:
    assert service_at(url).url == url


@pytest.mark.parametrize(
    "url",
    [
        *("", "host:8300", "ftp://host", "http://", "http://:80", "http://host:x"),
        *("http://host:99999", "http://host/?a", "http://host/#a", "http://ho st", "http://hö"),
        *("http://[::1", "http://a..b", "http://.a", f"http://{'a' * 64}"),
    ],
)
def test_a_url_that_cannot_be_used_is_named(url: str) -> None:
    with pytest.raises(AddressError, match="the URL"):
        service_at(url)


@pytest.mark.parametrize("url", ["http://1.2.3.999", "http://xn--0"])
@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_url_that_httpx_does_not_take_is_named_too(
    kind: type[Client] | type[AsyncClient], url: str
) -> None:
    with pytest.raises(AddressError, match="the URL"):
        kind(url)


@pytest.mark.parametrize(
    "url",
    [
        *("http://user:s3cret@host", "ftp://user:s3cret@host", "http://user:s3cret@host:x"),
        *("user:s3cret@host", "http://user:s3cret@host/?a", "http://user:s3cret@hö"),
    ],
)
def test_a_password_in_the_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(AddressError, match="the URL") as caught:
        service_at(url)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("key", ["", "a\nb", " a", "\udcff", "a\0"])
def test_a_key_that_would_break_the_header_is_refused_and_not_repeated(key: str) -> None:
    with pytest.raises(AddressError, match="the API key is") as caught:
        service_at("http://host", key)
    assert not key or key not in str(caught.value)


def test_the_key_is_not_shown_with_the_service() -> None:
    assert "s3cret" not in repr(service_at("http://host", "s3cret"))
