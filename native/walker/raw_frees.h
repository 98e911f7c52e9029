/* raw_frees.c: ends of blocks, seen by the raw allocator. GIL held, unless it says otherwise. */
#ifndef SPLUNK_PROFILER_WALKER_RAW_FREES_H
#define SPLUNK_PROFILER_WALKER_RAW_FREES_H

#include "allocations.h"

#define MAX_POOLED_BYTES 512 /* CPython's SMALL_REQUEST_THRESHOLD */

#pragma GCC visibility push(hidden)

/* Hook the raw allocator's free. STAYED: it was hooked. REFUSED: that shows no ends of blocks here. */
hooks_state raw_frees_install(void);
void raw_frees_remove(void);
/* Return true if it shows the ends of all blocks of more than MAX_POOLED_BYTES, as of the last call of the first two. Any
 * thread. */
bool raw_frees_see_ends(void);
/* Return true for CPython's own allocators without a context: they ignore what they get for one. Takes the linker's
 * lock. */
bool allocator_ignores_context(const PyMemAllocatorEx *allocator, const void *function);

#pragma GCC visibility pop

#endif
