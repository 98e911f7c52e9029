/* One complete context for readers, in both layouts. A thread alternates between two buffers. Plain C.
 *
 * docs/host-profilers/abi.md has the layouts and the order of writes.
 */
#ifndef SPLUNK_PROFILER_CONTEXT_RECORD_BUFFER_H
#define SPLUNK_PROFILER_CONTEXT_RECORD_BUFFER_H

#include <stddef.h>
#include <stdint.h>

#define HIDDEN __attribute__((visibility("hidden")))

/* Code that runs at every switch is placed together, apart from rare code. Between two switches the
 * application's code evicts it from the processor's caches, so each cache line costs. */
#define HOT  __attribute__((hot))
#define COLD __attribute__((cold, noinline))

/* The parts of a label that readers keep; they read the first ten labels. */
#define LABEL_KEY_BYTES   25
#define LABEL_VALUE_BYTES 53
#define TRACE_LABELS      3 /* trace_id, span_id, local_root_span_id */
#define MAX_USER_LABELS   (10 - TRACE_LABELS)

#define TRACE_ID_BYTES 16
#define SPAN_ID_BYTES  8

/* The published form of one span, encoded once. `serial` belongs to this span alone and is never 0; unlike an
 * address it is not reused. */
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

/* Elastic's thread-local layout: 37 bytes, no gaps. */
typedef struct __attribute__((packed)) {
    uint16_t layout_minor_version;
    uint8_t valid;
    uint8_t trace_present;
    uint8_t trace_flags;
    uint8_t trace_id[TRACE_ID_BYTES];
    uint8_t span_id[SPAN_ID_BYTES];
    uint8_t transaction_id[SPAN_ID_BYTES];
} elastic_record;

_Static_assert(sizeof(elastic_record) == 37, "readers take 37 bytes");

/* The layouts of the Custom Labels ABI. */
typedef struct {
    size_t length;
    const char *bytes;
} custom_string;

typedef struct {
    custom_string key, value;
} custom_label;

typedef struct {
    custom_label *storage;
    size_t count;
    size_t capacity;
} custom_label_set;

#define CACHE_LINE 64

/* One complete context in both layouts, with the bytes that they point to. A switch to another span writes
 * only the first two cache lines. */
typedef struct __attribute__((aligned(CACHE_LINE))) {
    char trace_hex[2 * TRACE_ID_BYTES];
    char span_hex[2 * SPAN_ID_BYTES];
    char local_root_hex[2 * SPAN_ID_BYTES];
    elastic_record elastic;
    custom_label_set set;
    /* The first ones are constant. A set without a span starts after them. */
    custom_label storage[TRACE_LABELS + MAX_USER_LABELS];
    encoded_label user_labels[MAX_USER_LABELS];
} record_buffer;

_Static_assert(offsetof(record_buffer, storage) == 2 * CACHE_LINE, "written at every switch of spans");

/* Initialize a buffer of zeros. Call it once for each buffer. */
HIDDEN void record_buffer_init(record_buffer *made);

/* Write this context; NULL: no span, no labels. No pointer refers to the buffer meanwhile. */
HIDDEN void record_buffer_write(record_buffer *target, const encoded_span *span, const encoded_labels *labels);

#endif
