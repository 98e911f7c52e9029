"""The origin of code: the application, a library or the standard library."""
