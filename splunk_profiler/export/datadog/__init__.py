"""The sink that sends profiles to a Datadog agent."""
