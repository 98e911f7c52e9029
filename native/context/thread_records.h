/* The memory that host profilers read: one record per thread, and the two thread-local pointers to it. Plain C.
 *
 * Who may do what. A record is made, written and pointed to by its own thread while that holds the interpreter's lock
 * (the GIL); other threads touch it only with the GIL *and* the registry's mutex; a thread that ends gives its record up
 * with the mutex alone. So the owner needs no mutex to publish. Nobody waits for the GIL while holding the mutex.
 * docs/abi.md has the layouts.
 */
#ifndef SPLUNK_PROFILER_CONTEXT_THREAD_RECORDS_H
#define SPLUNK_PROFILER_CONTEXT_THREAD_RECORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HIDDEN __attribute__((visibility("hidden")))

/* What runs at every switch lies together, apart from what seldom does: between two switches the application's code has
 * driven it out of the processor's caches, so each line of it costs. */
#define HOT  __attribute__((hot))
#define COLD __attribute__((cold, noinline))

/* What readers keep of a label; they look at the first ten. */
#define LABEL_KEY_BYTES   25
#define LABEL_VALUE_BYTES 53
#define TRACE_LABELS      3 /* trace_id, span_id, local_root_span_id */
#define MAX_USER_LABELS   (10 - TRACE_LABELS)

#define TRACE_ID_BYTES 16
#define SPAN_ID_BYTES  8

/* What is published of one span, encoded once. `serial` is of this span alone and never 0: unlike an address it is not
 * used again. */
typedef struct {
    uint64_t serial;
    uint8_t trace_flags;
    uint8_t trace_id[TRACE_ID_BYTES]; /* big-endian, as W3C writes them */
    uint8_t span_id[SPAN_ID_BYTES];
    uint8_t local_root_id[SPAN_ID_BYTES];
    char trace_hex[2 * TRACE_ID_BYTES];
    char span_hex[2 * SPAN_ID_BYTES];
    char local_root_hex[2 * SPAN_ID_BYTES];
} encoded_span;

typedef struct {
    uint8_t key_length, value_length;
    char key[LABEL_KEY_BYTES];
    char value[LABEL_VALUE_BYTES];
} encoded_label;

/* The user's labels, encoded once; `serial` as above. */
typedef struct {
    uint64_t serial;
    const encoded_label *labels; /* borrowed */
    size_t count;
} encoded_labels;

typedef enum { ELASTIC, CUSTOM_LABELS, LIBRARY_KINDS } library_kind;

/* Where the calling thread's pointer of a library is. */
typedef void **(*slot_accessor)(void);

typedef enum { SHOWN, UNCHANGED, NO_MEMORY } show_result;

/* Have the calling thread show this context from now on; NULL: no span, no labels. A thread that never had either gets no
 * record. `first` says whether this made the record. */
HIDDEN show_result thread_records_show(const encoded_span *span, const encoded_labels *labels);

/* The trace and the local root of a span that a thread showed; `present` is false if it showed none. */
typedef struct {
    bool present;
    uint8_t trace_id[TRACE_ID_BYTES];
    uint8_t local_root_id[SPAN_ID_BYTES];
} shown_root;

/* The calling thread, while its context is being found out by code that may switch threads: it shows no span. Returns what
 * it showed until then. */
HIDDEN shown_root thread_records_begin_update(void);
HIDDEN void thread_records_end_update(void);

/* What static thread-local memory is found from. */
HIDDEN intptr_t thread_records_thread_pointer(void);

/* Threads publish through this library from now on where its pointers are in static thread-local memory (`is_static`), else
 * from their next call of thread_records_show on. The pointers of another library of the kind are nulled. */
HIDDEN void thread_records_use_library(library_kind kind, slot_accessor accessor, bool is_static);

/* Null the pointers of all threads. Their memory stays for the next time. */
HIDDEN void thread_records_hide_all(void);

/* What a thread should show. */
typedef struct {
    unsigned long ident; /* as pthread_self has it */
    const encoded_span *span;
    const encoded_labels *labels;
    bool is_resolved;
} expected_context;

/* Compare what threads show with what they should, and make it so. `threads` is sorted by ident and all are known; those
 * without a record and those that are being updated are left alone; those that were hidden show it, and are not counted.
 * Returns how many were compared. */
HIDDEN size_t thread_records_repair(const expected_context *threads, size_t count, size_t *repaired);

HIDDEN size_t thread_records_count(void);

/* Registers what has to happen at the end of a thread and in a forked child; once, again for free. 0, or an errno. */
HIDDEN int thread_records_prepare_process(void);

/* In a forked child only the calling thread's record is left. Done by itself; again for free. */
HIDDEN void thread_records_after_fork(void);

#endif
