"""A small web shop: FastAPI on SQLite, traced with OpenTelemetry. It knows nothing of any profiler."""
