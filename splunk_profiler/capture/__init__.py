"""Reading of threads, in the host process: walkers, sampling threads, events and the overhead limit."""
