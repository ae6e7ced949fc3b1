"""What a URL of a Valkey store says, and what is wrong with some."""

from __future__ import annotations

import sys

import pytest

from outlast.app import store_for
from outlast.errors import InvalidConfig, InvalidDuration
from outlast.store.valkey.connection import Address
from outlast.store.valkey.servers import Replicas
from outlast.store.valkey.url import parse_url


def test_a_host_alone_is_enough():
    place = parse_url("valkey://db.internal")
    assert place.addresses == (Address("db.internal", 6379),)
    assert (place.cluster, place.prefix, place.partitions, place.partitions_given) == (False, "outlast", 16, False)
    assert (place.login.user, place.login.password, place.login.database, place.login.tls) == (None, None, 0, False)


def test_everything_can_be_said():
    place = parse_url("rediss://ann:p%40ss@h:7000/3?prefix=shop&partitions=4&min_replicas=1&replica_timeout=250ms")
    assert place.addresses == (Address("h", 7000),)
    assert (place.login.user, place.login.password, place.login.database, place.login.tls) == ("ann", "p@ss", 3, True)
    assert (place.prefix, place.partitions, place.replicas) == ("shop", 4, Replicas(1, 250))


def test_what_people_see_has_no_password():
    assert parse_url("valkey://ann:secret@h:1/2").shown == "valkey://ann@h:1/2"
    assert parse_url("valkey://:secret@h").shown == "valkey://h"


def test_a_cluster_names_some_of_its_servers():
    place = parse_url("valkey+cluster://a:7001,b,[::1]:7003")
    assert place.cluster
    assert place.addresses == (Address("a", 7001), Address("b", 6379), Address("::1", 7003))


def test_an_address_in_brackets_needs_no_port():
    assert parse_url("valkey://[::1]/2").addresses == (Address("::1", 6379),)
    assert parse_url("valkey+cluster://[::1],[::2]:7001").addresses == (Address("::1", 6379), Address("::2", 7001))


def test_a_socket_is_a_path():
    assert parse_url("valkey+unix:///run/valkey.sock?prefix=x").addresses == (Address(path="/run/valkey.sock"),)


@pytest.mark.parametrize(
    "url, complaint",
    [
        ("mysql://h", "no URL of a Valkey store"),
        ("valkey+carrier-pigeon://h", "no URL of a Valkey store"),
        ("valkey://a,b", "valkey\\+cluster"),
        ("valkey://h:port", "port must be a number"),
        ("valkey://h/x", "database must be a number"),
        ("valkey+cluster://h/1", "one database"),
        ("valkey://h?colour=red", "no option"),
        ("valkey://h?partitions=0", "from 1 to 1,024"),
        ("valkey://h?partitions=many", "partitions must be a number"),
        ("valkey://h?prefix=a{b}", "no braces"),
        ("valkey://h?min_replicas=-1", "min_replicas"),
        ("valkey://h?min_replicas=1&replica_timeout=6s&answer_timeout=2s", "shorter than answer_timeout"),
        ("valkey://h?min_replicas=1&replica_timeout=10s", "shorter than answer_timeout"),
        ("valkey://h?partitions=2&partitions=4", "given twice"),
        ("valkey://secret@h", "user:password"),
        ("valkey://h#1", "no server"),
        ("valkey://::1", "no server"),
        ("valkey+cluster://a,,b", "no server"),
        ("valkey+unix://run/valkey.sock", "third slash"),
        ("valkey+unix://", "third slash"),
        ("valkeys+unix:///run/valkey.sock", "no TLS"),
    ],
)
def test_what_cannot_be_meant_is_refused(url: str, complaint: str):
    with pytest.raises(InvalidConfig, match=complaint) as refused:
        parse_url(url)
    assert "secret" not in str(refused.value)


def test_a_bad_duration_is_told_with_its_option():
    with pytest.raises(InvalidDuration, match="replica_timeout: 'soon'"):
        parse_url("valkey://h?replica_timeout=soon")


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch):
    for name in [name for name in sys.modules if name.startswith("outlast.store.valkey")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "hiredis", None)
    with pytest.raises(InvalidConfig, match=r"outlast\[valkey\]"):
        store_for("valkey://localhost")
