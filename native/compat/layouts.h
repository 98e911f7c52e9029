/* Whether the CPython that runs has the layouts of the one that this was compiled for. */
#ifndef SPLUNK_PROFILER_COMPAT_LAYOUTS_H
#define SPLUNK_PROFILER_COMPAT_LAYOUTS_H

/* 0; -1 and an ImportError that says what differs. GIL held, in the main interpreter. */
__attribute__((visibility("hidden"))) int layouts_check(void);

#endif
