"""The user's labels: the public interface, their form on samples, and their tracking by thread."""
