"""The life of the profiler in a process: start, stop, forks, signals and exit."""
