/* Samples of allocations: allocator_hooks.c counts bytes, allocations.c takes and keeps the samples. */
#ifndef SPLUNK_PROFILER_WALKER_ALLOCATIONS_H
#define SPLUNK_PROFILER_WALKER_ALLOCATIONS_H

#include "ticker_state.h"

#include "live_heap.h"

#pragma GCC visibility push(hidden)

/* allocations.c. GIL held, unless it says otherwise. */
/* Begin to sample, once in `sample_bytes` on average; instead of another ticker, if there is one. False with an
 * exception. */
bool allocations_start(ticker_state *ticker, int64_t sample_bytes, bool tracks_live);
void allocations_set_sample_bytes(ticker_state *ticker, int64_t sample_bytes);
void allocations_stop(ticker_state *ticker); /* idempotent */
/* Return (samples, ids of blocks that are no longer in use). */
PyObject *allocations_drain(ticker_state *ticker, const module_state *module);
void allocations_release(ticker_state *ticker); /* stop, and release all references */
int allocations_traverse(ticker_state *ticker, visitproc visit, void *arg);
void allocations_close(void); /* the interpreter ends */
/* For the hooks; from any thread, perhaps without a GIL. */
void allocations_take_sample(void *memory, size_t size); /* NULL: the allocation has failed, and is no sample */
void allocations_end_block(void *memory);

/* allocator_hooks.c. GIL held. */
/* STAYED: they are called as before. ADDED: some were not, and what was freed meanwhile is not known. REFUSED: they
 * cannot be added, because there are other interpreters, or other libraries have removed them too often. */
typedef enum { HOOKS_STAYED, HOOKS_ADDED, HOOKS_REFUSED } hooks_state;
hooks_state allocator_hooks_install(void);
void allocator_hooks_remove(void);            /* as far as nothing hooks above them; else they stay and pass calls on */
void allocator_hooks_set_left(int64_t bytes); /* allocations to the next sample; from any thread */

#pragma GCC visibility pop

#endif
