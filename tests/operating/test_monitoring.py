"""Prometheus' rules, its scrape configuration and the Grafana dashboard, against a real Prometheus."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from wake_router.device_memory import TOLERANCE

from tests.operating.conftest import Frontdoor
from tests.standin.ports import free_port
from tests.standin.processes import HTTP, ROOT, wait_until

MONITORING = ROOT / "monitoring"
DASHBOARD = json.loads((MONITORING / "grafana-dashboard.json").read_text())
ALERTS = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"][0]["rules"]
QUERIES = [
    pytest.param(target["expr"], id=f"{panel['title']}-{target['refId']}")
    for panel in DASHBOARD["panels"]
    for target in panel["targets"]
]
SECONDS = 120


def promtool(*words: str) -> str:
    program = shutil.which("promtool")
    assert program, "promtool is needed: apt-get install prometheus"
    result = subprocess.run(
        [program, *words], cwd=MONITORING, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_the_configuration_and_the_rules_are_right() -> None:
    promtool("check", "config", "prometheus.yml")
    assert f"{len(ALERTS)} rules found" in promtool("check", "rules", "alerts.yml")


def test_every_rule_fires_when_it_should_and_only_then() -> None:
    promtool("test", "rules", "alerts_test.yml")
    well, wrong = yaml.safe_load((MONITORING / "alerts_test.yml").read_text())["tests"]
    names = [rule["alert"] for rule in ALERTS]
    assert [case["alertname"] for case in well["alert_rule_test"]] == names
    assert [case["alertname"] for case in wrong["alert_rule_test"] if case["exp_alerts"]] == names


def test_the_alert_on_memory_has_the_tolerance_of_the_status_page() -> None:
    (rule,) = (rule for rule in ALERTS if rule["alert"] == "FrontdoorDeviceMemoryOverPlan")
    assert rule["expr"].endswith(f"> {TOLERANCE} * frontdoor_device_memory_total_bytes")


def test_every_alert_says_what_to_do() -> None:
    for rule in ALERTS:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"] and rule["annotations"]["todo"]


class Prometheus:
    """A real one that scrapes a router."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def ask(self, path: str, **parameters: str) -> Any:
        answer = HTTP.get(f"{self.url}/api/v1/{path}", params=parameters, timeout=60)
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that an expression gives now."""
        return list(self.ask("query", query=expression)["result"])


@pytest.fixture(scope="module")
def prometheus(frontdoor: Frontdoor, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Started with our own configuration, but for the router's port and a shorter interval."""
    program = shutil.which("prometheus")
    assert program, "prometheus is needed: apt-get install prometheus"
    folder, port = tmp_path_factory.mktemp("prometheus"), free_port()
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    (job,) = config["scrape_configs"]
    job["static_configs"][0]["targets"] = [f"127.0.0.1:{frontdoor.router.admin_port}"]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    shutil.copy(MONITORING / "alerts.yml", folder)
    words = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [program, *words, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log
        )
    try:
        started = Prometheus(port)
        wait_until(lambda: is_ready(started, process, folder / "log"), SECONDS, "Prometheus")
        yield started
    finally:
        process.terminate()
        process.wait(timeout=60)


def is_ready(prometheus: Prometheus, process: subprocess.Popen[bytes], log: Path) -> bool:
    assert process.poll() is None, log.read_text()
    try:
        return HTTP.get(f"{prometheus.url}/-/ready", timeout=5).status_code == 200
    except Exception as error:  # noqa: BLE001  (whatever it is, it isn't ready yet)
        print(error)
        return False


@pytest.fixture(scope="module")
def busy(frontdoor: Frontdoor, prometheus: Prometheus) -> Prometheus:
    """Something has happened that every panel can show."""
    router = frontdoor.router

    def happens() -> bool:
        for depth in ("sleep", "offload"):
            assert router.order(f"services/text/{depth}", 60).status_code == 200
            assert router.chat("text", 60).status_code == 200
        assert router.chat("nobody").status_code == 404
        return bool(prometheus.query(DASHBOARD_WAKES)) and bool(prometheus.query("up == 1"))

    wait_until(happens, SECONDS, "wakes that Prometheus has seen")
    return prometheus


DASHBOARD_WAKES = (
    'sum(rate(frontdoor_transition_seconds_count{transition="wake",from_depth="offloaded"}[1m])) > 0'
)


@pytest.mark.parametrize("expression", QUERIES)
def test_every_query_of_the_dashboard_shows_something(busy: Prometheus, expression: str) -> None:
    replaced = expression.replace("$frontdoor", ".*").replace("$__rate_interval", "1m")
    assert "$" not in replaced
    series = wait_until(lambda: busy.query(replaced), SECONDS, f"{replaced} shows something")
    assert all(each["metric"] != {} for each in series)


def test_the_dashboard_is_whole() -> None:
    identities = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(identities)) == len(identities) >= 12
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in DASHBOARD["panels"]]
    assert len(set(places)) == len(places)
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    assert variables == {"source", "frontdoor"}


def test_the_rules_are_loaded_and_healthy(busy: Prometheus) -> None:
    def all_evaluated() -> list[dict[str, Any]] | None:
        (group,) = busy.ask("rules")["groups"]
        return group["rules"] if all(rule["health"] != "unknown" for rule in group["rules"]) else None

    rules = wait_until(all_evaluated, SECONDS, "all rules are evaluated")
    assert {rule["name"]: rule["health"] for rule in rules} == {rule["alert"]: "ok" for rule in ALERTS}


def test_what_the_rules_name_is_what_the_router_exports(busy: Prometheus) -> None:
    """A renamed metric would make a rule silent for ever."""
    exported = set(busy.ask("label/__name__/values"))
    for rule in ALERTS:
        named = {word for word in _words(rule["expr"]) if word.startswith(("frontdoor_", "up"))}
        assert named and named <= exported, rule["alert"]


def _words(expression: str) -> set[str]:
    text = "".join(letter if letter.isalnum() or letter == "_" else " " for letter in expression)
    return set(text.split())
