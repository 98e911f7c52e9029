"""A Celery application; its tasks say who has run them, in which span. Broker: a folder, ``CELERY_FOLDER``."""

from __future__ import annotations

import os
from pathlib import Path

from celery import Celery  # type: ignore[import-untyped, import-not-found, unused-ignore]
from marked_work import say
from wsgi_service import serve

_FOLDER = Path(os.environ["CELERY_FOLDER"])

app = Celery(
    "celery_service",
    broker="filesystem://",
    broker_transport_options={
        "data_folder_in": str(_FOLDER),
        "data_folder_out": str(_FOLDER),
        "control_folder": str(_FOLDER / "control"),
    },
)


@app.task(name="serve")  # type: ignore[untyped-decorator, misc, unused-ignore]
def serve_task(number: int) -> None:
    """Works in a span, as a request does."""
    say("served", serve(number))
