"""The settings of a process as JSON values, for the exporter process that works for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from splunk_profiler.config import Config, Resolved, from_config
from splunk_profiler.config.parsers import ConfigError


def to_values(resolved: Resolved) -> dict[str, Any]:
    """Return the settings, secrets included, as they were resolved, whatever environment and directory are now."""
    config, endpoint, certificates = resolved.config, resolved.endpoint, resolved.transport.certificates
    values = {item.name: getattr(config, item.name) for item in fields(config)}
    origins = dict(resolved.origins)
    if endpoint is not None and endpoint.path:
        values["logs_endpoint"], origins["logs_endpoint"] = f"unix:{endpoint.path}", endpoint.setting
    variables = dict(resolved.variables)
    variables.update(zip(certificates.settings, certificates.files, strict=True))
    return {
        "config": {item.name: values[item.name] for item in fields(config) if values[item.name] != item.default},
        "origins": origins,
        "environment": variables,
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
