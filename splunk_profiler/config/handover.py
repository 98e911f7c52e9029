"""The settings of a process as JSON values, for the exporter process that works for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from splunk_profiler.config import Config, Resolved, environment, from_config
from splunk_profiler.config.parsers import ConfigError

_PREFIXES = ("OTEL_", "SPLUNK_", "DD_")  # of the variables that settings may come from


def to_values(resolved: Resolved) -> dict[str, Any]:
    """Return the settings, secrets included."""
    config = resolved.config
    values = {item.name: getattr(config, item.name) for item in fields(config)}
    return {
        "config": {item.name: values[item.name] for item in fields(config) if values[item.name] != item.default},
        "origins": dict(resolved.origins),
        "environment": {name: value for name, value in environment().items() if name.startswith(_PREFIXES)},
    }


def from_values(values: Mapping[str, Any]) -> Resolved:
    """Return the settings that `to_values` has written.

    Raises:
        ConfigError: they are not usable here, perhaps because another version has written them.
    """
    try:
        config = Config(**values["config"])
        return from_config(config, dict(values["environment"]), origins=dict(values["origins"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"the settings of the profiled process are not usable: {error}") from None
