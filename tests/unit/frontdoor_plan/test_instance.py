from __future__ import annotations

import ipaddress

import pytest
from frontdoor_plan.instance import FIRST_SLOT, LAST_SLOT, Instance, default_network, default_port_base


def test_the_default_instance_has_the_documented_ports_and_network() -> None:
    instance = Instance.derive()
    assert (instance.public_port, instance.admin_port) == (8000, 8010)
    assert str(instance.network) == "10.213.0.0/21"
    assert instance.root == "/opt/vllm-frontdoor/default"
    assert instance.state == "/var/lib/vllm-frontdoor/default"


def test_another_instance_derives_its_own_from_its_name() -> None:
    instance = Instance.derive("rehearsal")
    assert (instance.public_port, instance.admin_port) == (31900, 31910)
    assert str(instance.network) == "10.213.96.0/21"
    assert instance.container("text") == "vllm-frontdoor-rehearsal-text"
    assert instance.engines_project == "vllm-frontdoor-rehearsal-engines"


@pytest.mark.parametrize("name", ["a", "b", "ci-1", "rehearsal", "production-2"])
def test_no_other_instance_gets_the_network_or_ports_of_the_default_one(name: str) -> None:
    assert not default_network(name).overlaps(default_network("default"))
    assert 20000 <= default_port_base(name) <= 39900


def test_a_slot_fixes_addresses_and_the_debug_port() -> None:
    instance = Instance.derive()
    assert str(instance.subnet(3)) == "10.213.0.48/28"
    assert str(instance.gateway(3)) == "10.213.0.49"
    assert instance.base_url(3) == "http://10.213.0.50:8000"
    assert instance.launcher_url(3) == "http://10.213.0.50:9000"
    assert instance.debug_port(3) == 8023


def test_all_slots_fit_and_none_share_an_address() -> None:
    instance = Instance.derive("x", ipaddress.IPv4Network("10.9.0.0/21"))
    subnets = [instance.subnet(slot) for slot in range(FIRST_SLOT, LAST_SLOT + 1)]
    assert len(set(subnets)) == LAST_SLOT
    assert all(subnet.subnet_of(instance.network) for subnet in subnets)


def test_a_network_that_is_too_small_is_told() -> None:
    with pytest.raises(ValueError, match="slot 99 does not fit"):
        Instance.derive("x", ipaddress.IPv4Network("10.9.0.0/24")).subnet(99)
