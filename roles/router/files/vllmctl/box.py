"""Where an instance of the front door lies on this machine, and how its router is reached."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllmctl.errors import CommandError

DEFAULT_ROOT = "/opt/vllm-frontdoor"
DEFAULT_STATE = "/var/lib/vllm-frontdoor"
DEFAULT_INSTANCE = "default"
NOT_INSTANCES = frozenset({"bundle", "docker", "locks", "models"})


@dataclass(frozen=True)
class Box:
    """One instance on this machine."""

    instance: str
    root: Path
    state: Path

    @property
    def models(self) -> Path:
        """The folder of the models, shared by all instances: what the deployment says, or the usual one."""
        try:
            return Path(self.pulling()["models_root"])
        except (CommandError, KeyError, TypeError):
            return self.state.parent / "models"

    def pulling(self) -> dict[str, Any]:
        """What the deployment says about pulling models; raises CommandError where it can't be read."""
        path = self.root / "pull.json"
        try:
            settings = json.loads(_read(path))
        except ValueError:
            settings = None
        if not isinstance(settings, dict):
            raise CommandError(f"{path} is damaged (no JSON object); deploy again.")
        return settings

    @property
    def admin_url(self) -> str:
        """The router's admin listener; raises CommandError where the instance can't be read."""
        return f"http://{self.setting('ROUTER_ADMIN_ADDRESS')}"

    @property
    def public_url(self) -> str:
        """Where clients ask, as it is reached from this machine; raises CommandError."""
        host, _, port = self.setting("ROUTER_PUBLIC_ADDRESS").rpartition(":")
        host = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)
        scheme = "https" if "ROUTER_TLS_CERTIFICATE" in self._settings() else "http"
        return f"{scheme}://{host}:{port}"

    def token(self) -> str:
        """The admin token; raises CommandError where it can't be read."""
        return _read(self.root / "secrets" / "admin-token").strip()

    def container(self, service: str) -> str:
        """Name of a service's container, or of the router's."""
        return f"vllm-frontdoor-{self.instance}-{service}"

    def setting(self, name: str) -> str:
        """A setting that the router was deployed with; raises CommandError."""
        settings = self._settings()
        if name not in settings:
            raise CommandError(f"{self._environment} names no {name}; deploy again.")
        return settings[name]

    @property
    def _environment(self) -> Path:
        return self.root / "router" / "router.env"

    def _settings(self) -> dict[str, str]:
        lines = _read(self._environment).splitlines()
        pairs = (line.partition("=") for line in lines)
        return {name: value.strip().strip("'\"") for name, sign, value in pairs if sign}


def find_box(instance: str | None) -> Box:
    """The instance of that name; without a name `default`, or the only one that is here.

    Raises CommandError where there is none, or where somebody has to choose.
    """
    root = Path(os.environ.get("FRONTDOOR_ROOT", DEFAULT_ROOT))
    state = Path(os.environ.get("FRONTDOOR_STATE_ROOT", DEFAULT_STATE))
    known = instances(root)
    if not known:
        raise CommandError(
            f"No front door is deployed on this machine (nothing is in {root}); from the folder of "
            "vllm-frontdoor, ./box site deploys one, and ./box rehearse one for a trial."
        )
    if instance is None:
        instance = known[0] if len(known) == 1 else DEFAULT_INSTANCE
    if instance not in known:
        raise CommandError(
            f"There is no instance '{instance}' in {root}. Choose one with --instance: {', '.join(known)}."
        )
    return Box(instance, root / instance, state / instance)


def instances(root: Path) -> list[str]:
    """Names of the instances on this machine."""
    found = (path.parent.name for path in root.glob("*/router") if path.is_dir())
    return sorted(name for name in found if name not in NOT_INSTANCES)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except PermissionError:
        raise CommandError(f"{path} may not be read by you: use sudo.") from None
    except OSError as error:
        reason = error.strerror
        raise CommandError(f"{path} can't be read ({reason}); deploy again.") from None
    except UnicodeDecodeError:
        raise CommandError(f"{path} is damaged (not text); deploy again.") from None
