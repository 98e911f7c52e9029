"""The connection to OpenTelemetry: contexts, spans, processors, local roots and selected traces."""
