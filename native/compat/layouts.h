/* Checks that the running CPython has the layouts of the one that this was compiled for. */
#ifndef SPLUNK_PROFILER_COMPAT_LAYOUTS_H
#define SPLUNK_PROFILER_COMPAT_LAYOUTS_H

/* Return 0, or -1 with an ImportError that names the difference. GIL held, in the main interpreter. */
__attribute__((visibility("hidden"))) int layouts_check(void);

#endif
