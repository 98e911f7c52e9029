/* sigterm.c: the end of the process by SIGTERM, after what is gathered has been sent. */
#ifndef SPLUNK_PROFILER_WALKER_SIGTERM_H
#define SPLUNK_PROFILER_WALKER_SIGTERM_H

#include <stdbool.h>

#pragma GCC visibility push(hidden)

/* Return true from SIGTERM on, until `sigterm_take` is called: whoever waits for something else ends that wait. */
bool sigterm_is_untaken(void);

#pragma GCC visibility pop

#endif
