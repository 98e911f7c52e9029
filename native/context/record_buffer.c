/* Writes a context in both layouts, in the order that readers rely on. The owner of the half, and nobody else. Plain C. */
#include "record_buffer.h"

#include <stdatomic.h>
#include <string.h>

#define LAYOUT_MINOR_VERSION 1

/* A span's bytes have the order of those that are published, so that they are copied in two pieces. */
enum {
    FLAGS_AND_IDS = offsetof(elastic_record, trace_flags),
    BYTES_OF_IDS = sizeof(elastic_record) - FLAGS_AND_IDS,
    HEX = offsetof(half, trace_hex),
    BYTES_OF_HEX = offsetof(half, elastic) - HEX,
};

#define SAME_PLACE(published, from, in_span, start)                                                                    \
    _Static_assert(offsetof(published, from) - offsetof(published, start)                                              \
                       == offsetof(span_bytes, in_span) - offsetof(span_bytes, start),                                 \
                   "copied in one piece")
SAME_PLACE(elastic_record, trace_id, trace_id, trace_flags);
SAME_PLACE(elastic_record, span_id, span_id, trace_flags);
SAME_PLACE(elastic_record, transaction_id, local_root_id, trace_flags);
SAME_PLACE(half, span_hex, span_hex, trace_hex);
SAME_PLACE(half, local_root_hex, local_root_hex, trace_hex);

static void add_label(half *into, size_t at, const char *key, const char *value, size_t value_length)
{
    into->storage[at] = (custom_label){{strlen(key), key}, {value_length, value}};
}

void half_prepare(half *made)
{
    made->elastic.layout_minor_version = LAYOUT_MINOR_VERSION;
    add_label(made, 0, "trace_id", made->trace_hex, sizeof(made->trace_hex));
    add_label(made, 1, "span_id", made->span_hex, sizeof(made->span_hex));
    add_label(made, 2, "local_root_span_id", made->local_root_hex, sizeof(made->local_root_hex));
}

static COLD void write_user_labels(half *into, const labels_bytes *labels)
{
    for (size_t i = 0; i < labels->count; i++) {
        label_bytes *label = &into->user[i];
        *label = labels->labels[i];
        into->storage[TRACE_LABELS + i] =
            (custom_label){{label->key_length, label->key}, {label->value_length, label->value}};
    }
}

static void write_labels(half *into, const span_bytes *span, const labels_bytes *labels)
{
    size_t count = 0;
    if (labels != NULL) {
        write_user_labels(into, labels);
        count = labels->count;
    }
    if (span != NULL) {
        memcpy((char *)into + HEX, (const char *)span + offsetof(span_bytes, trace_hex), BYTES_OF_HEX);
        into->set = (custom_label_set){into->storage, TRACE_LABELS + count, TRACE_LABELS + MOST_USER_LABELS};
    }
    else {
        into->set = (custom_label_set){into->storage + TRACE_LABELS, count, MOST_USER_LABELS};
    }
}

static void write_elastic(elastic_record *into, const span_bytes *span)
{
    into->trace_present = span != NULL;
    if (span != NULL) {
        memcpy((char *)into + FLAGS_AND_IDS, (const char *)span + offsetof(span_bytes, trace_flags), BYTES_OF_IDS);
    }
    else {
        memset((char *)into + FLAGS_AND_IDS, 0, BYTES_OF_IDS);
    }
}

/* Readers stop the thread and look from the same core, so only the compiler could confuse them;
 * `valid` is for one who still holds the address from before. */
HOT void half_write(half *into, const span_bytes *span, const labels_bytes *labels)
{
    *(volatile uint8_t *)&into->elastic.valid = 0;
    atomic_signal_fence(memory_order_seq_cst); /* no byte changes while `valid` is set */
    write_elastic(&into->elastic, span);
    write_labels(into, span, labels);
    atomic_signal_fence(memory_order_seq_cst); /* all bytes are there before `valid` is set */
    *(volatile uint8_t *)&into->elastic.valid = 1;
    atomic_signal_fence(memory_order_seq_cst); /* and that before it is pointed to */
}
