"""The system's directory for temporary files. To load `tempfile` for it costs a service most of a megabyte."""

from __future__ import annotations

import os
from collections.abc import Mapping

_VARIABLES = ("TMPDIR", "TEMP", "TMP")
_DIRECTORIES = ("/tmp", "/var/tmp", "/usr/tmp")  # noqa: S108  # those of `tempfile`


def temporary_directory(env: Mapping[str, str] = os.environ) -> str:
    """Return the first place that can be written to, as `tempfile.gettempdir` does; ``/tmp`` if there is none."""
    named = (env.get(name, "") for name in _VARIABLES)
    places = (*filter(os.path.isabs, named), *_DIRECTORIES)
    usable = (place for place in places if os.path.isdir(place) and os.access(place, os.W_OK | os.X_OK))  # noqa: PTH112
    return next(usable, _DIRECTORIES[0])
