/* wakeups.c: the wait of threads that SIGTERM's handler, too, has to wake. A condition cannot be used in a handler. */
#ifndef SPLUNK_PROFILER_WALKER_WAKEUPS_H
#define SPLUNK_PROFILER_WALKER_WAKEUPS_H

#include <stdint.h>

#pragma GCC visibility push(hidden)

unsigned wakeups_count(void);
/* Wait, without the GIL, until a time of monotonic_ns, unless `wakeups_send` is called after `wakeups_count` returned
 * `count`; between the two the caller looks if there is anything to do. May return without a reason. */
void wakeups_wait(unsigned count, int64_t until_ns);
/* Wake all threads that wait. Async-signal-safe. */
void wakeups_send(void);

#pragma GCC visibility pop

#endif
