"""Sinks, which send records to a collector, files or a Datadog agent."""
