/* Samples of allocations: allocator_hooks.c counts bytes, allocations.c takes and keeps the samples. */
#ifndef SPLUNK_PROFILER_WALKER_ALLOCATIONS_H
#define SPLUNK_PROFILER_WALKER_ALLOCATIONS_H

#include "ticker_state.h"

#include "live_heap.h"

/* Each thread has a distance of its own: so neither threads with another GIL nor those without one disturb those that
 * hold ours. All 0: none has begun. */
typedef struct {
    int64_t left; /* bytes before the last one; below 0: it has ended */
    double mean;
    unsigned long period; /* of `sampling`, when it was drawn */
    bool is_part;         /* its rest is drawn where this part ends */
} allocation_distance;

/* One instruction to address. musl cannot load a library at run time that has such a variable. */
#ifdef __GLIBC__
#define THREAD_DISTANCE __attribute__((tls_model("initial-exec")))
#else
#define THREAD_DISTANCE
#endif

#pragma GCC visibility push(hidden)

extern THREAD_DISTANCE _Thread_local allocation_distance thread_distance;

/* allocations.c. GIL held, unless it says otherwise. */
/* Begin to sample, once in `sample_bytes` on average; instead of another ticker, if there is one. False with an
 * exception. */
bool allocations_start(ticker_state *ticker, int64_t sample_bytes, bool tracks_live);
void allocations_set_sample_bytes(ticker_state *ticker, int64_t sample_bytes);
void allocations_stop(ticker_state *ticker); /* idempotent */
/* Return (samples, ids of blocks that are no longer in use). */
PyObject *allocations_drain(ticker_state *ticker, const module_state *module);
void allocations_release(ticker_state *ticker); /* stop, and free what is not in the queue of events */
void allocations_close(void);                   /* the interpreter ends */
/* For the hooks; from any thread, perhaps without a GIL. */
/* The distance of the calling thread has ended. NULL: the allocation has failed, and is no sample. */
void allocations_take_sample(void *memory, size_t size);
void allocations_end_block(void *memory);

/* allocator_hooks.c. GIL held. */
/* STAYED: they are called as before. ADDED: some were not, and what was freed meanwhile is not known. REFUSED: they
 * cannot be added, because there are other interpreters, or other libraries have removed them too often. */
typedef enum { HOOKS_STAYED, HOOKS_ADDED, HOOKS_REFUSED } hooks_state;
hooks_state allocator_hooks_install(bool needs_frees); /* whether ends of blocks are to be known */
void allocator_hooks_remove(void); /* as far as nothing hooks above them; else they stay and pass calls on */

#pragma GCC visibility pop

#endif
