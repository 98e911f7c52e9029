"""Encoders of samples and profiles: text, pprof, and what Datadog expects."""
