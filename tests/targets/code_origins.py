"""Imports the given packages, then prints the origin of each of their code objects and the modules loaded by that.

    code_origins.py SITE PATH... -- MODULE...

SITE is a directory of installed packages, whose ``.pth`` files count; each PATH goes to ``sys.path``.
"""

from __future__ import annotations

import json
import site
import sys
from importlib import import_module
from types import FunctionType
from typing import Any

from splunk_profiler.code_origin.classifier import CodeClassifier


def main() -> None:
    """One line of JSON."""
    arguments = sys.argv[1:]
    paths, names = arguments[: arguments.index("--")], arguments[arguments.index("--") + 1 :]
    site.addsitedir(paths[0])
    sys.path += paths[1:]
    modules = [import_module(name) for name in names]
    loaded = set(sys.modules)
    classifier = CodeClassifier(monotonic=lambda: 0.0)  # one `read` reads all, also on a busy machine
    whole = classifier.read()
    told: dict[str, Any] = {}
    for module in modules:
        for name, value in vars(module).items():
            made = vars(value).get("__init__") if isinstance(value, type) else value
            if isinstance(made, FunctionType) and value.__module__ == module.__name__:
                code = made.__code__
                origin = classifier.classify(code.co_filename, module.__name__)
                told[f"{module.__name__}.{name}"] = (origin.kind.value, origin.name, origin.version)
    print(json.dumps({"whole": whole, "told": told, "loaded": sorted(set(sys.modules) - loaded)}))


if __name__ == "__main__":
    main()
