/* One futex for all waits of the process (wakeups.h): few threads wait, and a wake-up too many does no harm. */
#include "wakeups.h"

#include "clocks.h"

#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

static atomic_uint wakeups;

unsigned wakeups_count(void)
{
    return atomic_load(&wakeups);
}

void wakeups_wait(unsigned count, int64_t until_ns)
{
    int64_t left_ns = until_ns - monotonic_ns();
    /* As this system call has it everywhere; on 32 bits the timespec of a C library may be larger. */
    struct {
        long seconds, nanoseconds;
    } timeout = {(long)(left_ns / SECOND_NS), (long)(left_ns % SECOND_NS)};
    if (left_ns > 0) {
        (void)syscall(SYS_futex, &wakeups, FUTEX_WAIT_PRIVATE, count, &timeout, NULL, 0);
    }
}

void wakeups_send(void)
{
    atomic_fetch_add(&wakeups, 1);
    (void)syscall(SYS_futex, &wakeups, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}
