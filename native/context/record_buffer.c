/* Writes a context in both layouts, in the order that readers rely on. Only the buffer's owner calls it.
 * Plain C. */
#include "record_buffer.h"

#include <stdatomic.h>
#include <string.h>

#define LAYOUT_MINOR_VERSION 1

/* A span's bytes have the published order, so that two copies suffice. */
enum {
    FLAGS_AND_IDS_OFFSET = offsetof(elastic_record, trace_flags),
    FLAGS_AND_IDS_SIZE = sizeof(elastic_record) - FLAGS_AND_IDS_OFFSET,
    HEX_OFFSET = offsetof(record_buffer, trace_hex),
    HEX_SIZE = offsetof(record_buffer, elastic) - HEX_OFFSET,
};

#define ASSERT_SAME_OFFSET(published, from, in_span, start)                                                            \
    _Static_assert(offsetof(published, from) - offsetof(published, start)                                              \
                       == offsetof(encoded_span, in_span) - offsetof(encoded_span, start),                             \
                   "copied in one piece")
ASSERT_SAME_OFFSET(elastic_record, trace_id, trace_id, trace_flags);
ASSERT_SAME_OFFSET(elastic_record, span_id, span_id, trace_flags);
ASSERT_SAME_OFFSET(elastic_record, transaction_id, local_root_id, trace_flags);
ASSERT_SAME_OFFSET(record_buffer, span_hex, span_hex, trace_hex);
ASSERT_SAME_OFFSET(record_buffer, local_root_hex, local_root_hex, trace_hex);

static void add_label(record_buffer *target, size_t at, const char *key, const char *value, size_t value_length)
{
    target->storage[at] = (custom_label){{strlen(key), key}, {value_length, value}};
}

void record_buffer_init(record_buffer *made)
{
    made->elastic.layout_minor_version = LAYOUT_MINOR_VERSION;
    add_label(made, 0, "trace_id", made->trace_hex, sizeof(made->trace_hex));
    add_label(made, 1, "span_id", made->span_hex, sizeof(made->span_hex));
    add_label(made, 2, "local_root_span_id", made->local_root_hex, sizeof(made->local_root_hex));
}

static COLD void write_user_labels(record_buffer *target, const encoded_labels *labels)
{
    for (size_t i = 0; i < labels->count; i++) {
        encoded_label *label = &target->user_labels[i];
        *label = labels->labels[i];
        target->storage[TRACE_LABELS + i] =
            (custom_label){{label->key_length, label->key}, {label->value_length, label->value}};
    }
}

static void write_labels(record_buffer *target, const encoded_span *span, const encoded_labels *labels)
{
    size_t count = 0;
    if (labels != NULL) {
        write_user_labels(target, labels);
        count = labels->count;
    }
    if (span != NULL) {
        memcpy((char *)target + HEX_OFFSET, (const char *)span + offsetof(encoded_span, trace_hex), HEX_SIZE);
        target->set = (custom_label_set){target->storage, TRACE_LABELS + count, TRACE_LABELS + MAX_USER_LABELS};
    }
    else {
        target->set = (custom_label_set){target->storage + TRACE_LABELS, count, MAX_USER_LABELS};
    }
}

static void write_elastic(elastic_record *target, const encoded_span *span)
{
    target->trace_present = span != NULL;
    if (span != NULL) {
        memcpy((char *)target + FLAGS_AND_IDS_OFFSET, (const char *)span + offsetof(encoded_span, trace_flags),
               FLAGS_AND_IDS_SIZE);
    }
    else {
        memset((char *)target + FLAGS_AND_IDS_OFFSET, 0, FLAGS_AND_IDS_SIZE);
    }
}

/* Readers stop the thread and read on the same core, so only the compiler could reorder the writes. `valid`
 * serves a reader that still has the previous address. */
HOT void record_buffer_write(record_buffer *target, const encoded_span *span, const encoded_labels *labels)
{
    *(volatile uint8_t *)&target->elastic.valid = 0;
    atomic_signal_fence(memory_order_seq_cst); /* no byte changes while `valid` is set */
    write_elastic(&target->elastic, span);
    write_labels(target, span, labels);
    atomic_signal_fence(memory_order_seq_cst); /* all bytes are written before `valid` is set */
    *(volatile uint8_t *)&target->elastic.valid = 1;
    atomic_signal_fence(memory_order_seq_cst); /* `valid` is set before the pointer */
}
