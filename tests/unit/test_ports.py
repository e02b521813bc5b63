"""No two servers of a test get one port."""

from __future__ import annotations

import socket

import pytest

from tests.standin import ports


def test_a_port_is_given_once_even_while_nobody_listens_on_it() -> None:
    assert len({ports.free_port() for _ in range(2000)}) == 2000


def test_a_port_that_somebody_listens_on_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_given", 0)
    taken = ports.free_port()
    monkeypatch.setattr(ports, "_given", taken - ports.LOWEST - 1)
    with socket.create_server(("127.0.0.1", taken)):
        assert ports.free_port() > taken
