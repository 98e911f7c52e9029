"""The process as host profilers see it, and the stack traces that they send back."""
