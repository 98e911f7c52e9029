"""Publication at every `attach` and `detach` of OpenTelemetry's runtime context.

The patch is on the loaded *instance*: it also works for callers that imported OpenTelemetry's
functions early. C functions replace the stock methods; other or patched methods are called, followed
by `publish`. Runs on the application's threads: must be short and must not raise.
"""

from __future__ import annotations

from typing import Any

from splunk_profiler.system.method_patch import MethodPatch


def patch_runtime_context(runtime: Any, extension: Any) -> MethodPatch:
    """Patch OpenTelemetry's runtime context; `MethodPatch.remove` undoes it."""
    patch = MethodPatch(runtime)
    if _is_stock(runtime):
        patch.install({"attach": extension.attach, "detach": extension.detach})
        return patch
    inner_attach, inner_detach = runtime.attach, runtime.detach

    def publishing_attach(context: Any) -> Any:
        token = inner_attach(context)
        extension.publish()  # does nothing once publishing has stopped
        return token

    def publishing_detach(token: Any) -> None:
        try:
            inner_detach(token)
        finally:
            extension.publish()

    patch.install({"attach": publishing_attach, "detach": publishing_detach})
    return patch


def _is_stock(runtime: Any) -> bool:
    from opentelemetry.context.contextvars_context import (  # noqa: PLC0415  # loaded by OpenTelemetry unless replaced
        ContextVarsRuntimeContext,
    )

    kind = type(runtime)
    return (
        not {"attach", "detach"} & vars(runtime).keys()
        and getattr(kind, "attach", None) is ContextVarsRuntimeContext.attach
        and getattr(kind, "detach", None) is ContextVarsRuntimeContext.detach
    )
