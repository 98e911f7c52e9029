"""The settings of a process as JSON values, for the exporter process that works for it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from typing import Any

from splunk_profiler.config import Config, Resolved, from_config
from splunk_profiler.config.parsers import ConfigError, has_secret


def to_values(resolved: Resolved) -> dict[str, Any]:
    """Return the settings, secrets included, as they were resolved, whatever the environment is now.

    The exporter process has another working directory: paths are absolute.
    """
    config, endpoint, certificates = resolved.config, resolved.endpoint, resolved.transport.certificates
    values = {item.name: getattr(config, item.name) for item in fields(config)}
    origins = dict(resolved.origins)
    if endpoint is not None and endpoint.path:
        values["logs_endpoint"], origins["logs_endpoint"] = f"unix:{_absolute(endpoint.path)}", endpoint.setting
    variables = dict(resolved.variables)
    variables.update(zip(certificates.settings, map(_absolute, certificates.files), strict=True))
    return {
        "config": {item.name: values[item.name] for item in fields(config) if values[item.name] != item.default},
        "origins": origins,
        "environment": variables,
    }


def _absolute(path: str) -> str:
    """Return the absolute path; `path` itself if it is empty, or where there is no working directory.

    And where it is a secret: behind a directory it would not be known for one.
    """
    with suppress(OSError):
        if path and not has_secret(path):
            return os.path.join(os.getcwd(), path)  # noqa: PTH109, PTH118  # text, which keeps a final slash
    return path


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
