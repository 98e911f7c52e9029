/* Each thread's two halves and the pointers to them: write, show, repair, hide, and give up at the end. Plain C. */
#include "thread_records.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LAYOUT_MINOR_VERSION 1

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

/* One complete context, in both layouts, with the bytes that they point to. */
typedef struct {
    elastic_record elastic;
    custom_label_set set;
    custom_label storage[TRACE_LABELS + MOST_USER_LABELS];
    uint64_t span, labels; /* serials of what it holds; 0: none */
    char trace_hex[2 * TRACE_ID_BYTES];
    char span_hex[2 * SPAN_ID_BYTES];
    char local_root_hex[2 * SPAN_ID_BYTES];
    label_bytes user[MOST_USER_LABELS];
} half;

typedef struct thread_record {
    struct thread_record *next, **link; /* mutex */
    unsigned long ident;                /* constant */
    intptr_t thread_pointer;            /* constant */
    void **slots[LIBRARIES];            /* this thread's pointers; NULL: no library of the kind */
    unsigned generation;                /* of the libraries that the slots are of */
    unsigned updates;                   /* begun and not ended: what is shown is not expected to be right */
    elastic_record before;              /* what was shown before the update that was begun last */
    bool shown;                         /* the pointers lead to `current` */
    half *current;
    half *newest; /* of the two, the one that was written last */
    half halves[2];
    half rest; /* no span, no labels: always there, never written again */
} thread_record;

/* What the process has: the list for those who do not own the records, and the libraries. */
static struct {
    pthread_mutex_t mutex;
    thread_record *first;               /* mutex */
    atomic_size_t count;                /* written with the mutex */
    slot_accessor accessors[LIBRARIES]; /* GIL */
    unsigned generation;                /* GIL */
    bool prepared;                      /* GIL */
    pthread_key_t key;                  /* its destructor sees a thread end */
    atomic_long process;                /* whose records these are */
} registry = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static _Thread_local struct {
    thread_record *record; /* owned */
    bool ended;            /* the thread's destructors run: no record any more */
} self;

/* ---- one record ---- */

static void point(const thread_record *record, const elastic_record *elastic, const custom_label_set *set)
{
    /* Complete before it is pointed to. Release, since other threads may do this. */
    if (record->slots[ELASTIC] != NULL) {
        __atomic_store_n(record->slots[ELASTIC], (void *)elastic, __ATOMIC_RELEASE);
    }
    if (record->slots[CUSTOM_LABELS] != NULL) {
        __atomic_store_n(record->slots[CUSTOM_LABELS], (void *)set, __ATOMIC_RELEASE);
    }
}

static void add_label(half *into, const char *key, size_t key_length, const char *value, size_t value_length)
{
    into->storage[into->set.count++] = (custom_label){{key_length, key}, {value_length, value}};
}

static void write_labels(half *into, const span_bytes *span, const labels_bytes *labels)
{
    into->set = (custom_label_set){into->storage, 0, TRACE_LABELS + MOST_USER_LABELS};
    if (span != NULL) {
        memcpy(into->trace_hex, span->trace_hex, sizeof(into->trace_hex));
        memcpy(into->span_hex, span->span_hex, sizeof(into->span_hex));
        memcpy(into->local_root_hex, span->local_root_hex, sizeof(into->local_root_hex));
        add_label(into, "trace_id", strlen("trace_id"), into->trace_hex, sizeof(into->trace_hex));
        add_label(into, "span_id", strlen("span_id"), into->span_hex, sizeof(into->span_hex));
        add_label(into, "local_root_span_id", strlen("local_root_span_id"), into->local_root_hex,
                  sizeof(into->local_root_hex));
    }
    for (size_t i = 0; labels != NULL && i < labels->count; i++) {
        label_bytes *label = &into->user[i];
        *label = labels->labels[i];
        add_label(into, label->key, label->key_length, label->value, label->value_length);
    }
}

static void write_elastic(elastic_record *into, const span_bytes *span)
{
    into->layout_minor_version = LAYOUT_MINOR_VERSION;
    into->trace_present = span != NULL;
    if (span != NULL) {
        into->trace_flags = span->trace_flags;
        memcpy(into->trace_id, span->trace_id, TRACE_ID_BYTES);
        memcpy(into->span_id, span->span_id, SPAN_ID_BYTES);
        memcpy(into->transaction_id, span->local_root_id, SPAN_ID_BYTES);
    }
    else {
        memset(&into->trace_flags, 0, sizeof(*into) - offsetof(elastic_record, trace_flags));
    }
}

/* Nothing points to it. Readers stop the thread and look from the same core, so only the compiler could confuse them;
 * `valid` is for one who still holds the address from before. */
static void write_half(half *into, const span_bytes *span, const labels_bytes *labels)
{
    into->span = into->labels = 0; /* a fork in the middle must not leave a child with a half that claims to be whole */
    *(volatile uint8_t *)&into->elastic.valid = 0;
    atomic_signal_fence(memory_order_seq_cst); /* no byte changes while `valid` is set */
    write_elastic(&into->elastic, span);
    write_labels(into, span, labels);
    into->span = span == NULL ? 0 : span->serial;
    into->labels = labels == NULL ? 0 : labels->serial;
    atomic_signal_fence(memory_order_seq_cst); /* all bytes are there before `valid` is set */
    *(volatile uint8_t *)&into->elastic.valid = 1;
    atomic_signal_fence(memory_order_seq_cst); /* and that before it is pointed to */
}

static bool holds(const half *candidate, uint64_t span, uint64_t labels)
{
    return candidate->span == span && candidate->labels == labels;
}

/* The half that holds this context; written now if none does, and then not the one that is shown. */
static half *half_with(thread_record *record, const span_bytes *span, const labels_bytes *labels)
{
    uint64_t span_serial = span == NULL ? 0 : span->serial;
    uint64_t labels_serial = labels == NULL ? 0 : labels->serial;
    if (span_serial == 0 && labels_serial == 0) {
        return &record->rest;
    }
    for (int i = 0; i < 2; i++) {
        if (holds(&record->halves[i], span_serial, labels_serial)) {
            return &record->halves[i];
        }
    }
    const half *kept = record->current == &record->rest ? record->newest : record->current;
    half *other = &record->halves[kept == &record->halves[0]];
    write_half(other, span, labels);
    record->newest = other;
    return other;
}

static void show(thread_record *record, half *wanted)
{
    record->current = wanted;
    record->shown = true;
    point(record, &wanted->elastic, &wanted->set);
}

static void hide(thread_record *record)
{
    record->shown = false;
    point(record, NULL, NULL);
}

/* ---- the calling thread ---- */

intptr_t thread_records_thread_pointer(void)
{
    intptr_t pointer;
#if defined(__x86_64__)
    __asm__("mov %%fs:0, %0" : "=r"(pointer));
#else
    __asm__("mrs %0, tpidr_el0" : "=r"(pointer));
#endif
    return pointer;
}

static void find_slots(thread_record *record)
{
    for (int kind = 0; kind < LIBRARIES; kind++) {
        record->slots[kind] = registry.accessors[kind] == NULL ? NULL : registry.accessors[kind]();
    }
    record->generation = registry.generation;
    record->shown = false;
}

static thread_record *record_new(void)
{
    thread_record *record = calloc(1, sizeof(thread_record));
    if (record == NULL) {
        return NULL;
    }
    if (pthread_setspecific(registry.key, record) != 0) {
        free(record);
        return NULL;
    }
    record->ident = (unsigned long)pthread_self();
    record->thread_pointer = thread_records_thread_pointer();
    record->current = &record->rest;
    write_half(&record->rest, NULL, NULL);
    find_slots(record);
    pthread_mutex_lock(&registry.mutex);
    record->next = registry.first;
    record->link = &registry.first;
    if (registry.first != NULL) {
        registry.first->link = &record->next;
    }
    registry.first = record;
    atomic_fetch_add(&registry.count, 1);
    pthread_mutex_unlock(&registry.mutex);
    self.record = record;
    return record;
}

show_result thread_records_show(const span_bytes *span, const labels_bytes *labels)
{
    thread_record *record = self.record;
    if (record == NULL) {
        if ((span == NULL && labels == NULL) || self.ended) {
            return UNCHANGED;
        }
        record = record_new();
        if (record == NULL) {
            return NO_MEMORY;
        }
    }
    else if (record->generation != registry.generation) {
        find_slots(record);
    }
    else if (record->shown
             && holds(record->current, span == NULL ? 0 : span->serial, labels == NULL ? 0 : labels->serial)) {
        return UNCHANGED;
    }
    show(record, half_with(record, span, labels));
    return SHOWN;
}

void thread_records_begin_update(void)
{
    if (self.record != NULL) {
        self.record->updates++;
        self.record->before = self.record->current->elastic;
        if (self.record->shown) {
            show(self.record, &self.record->rest);
        }
    }
}

void thread_records_end_update(void)
{
    if (self.record != NULL && self.record->updates > 0) {
        self.record->updates--;
    }
}

bool thread_records_root_before_update(const uint8_t *trace_id, uint8_t *local_root_id)
{
    const elastic_record *before = self.record == NULL || self.record->updates == 0 ? NULL : &self.record->before;
    if (before == NULL || !before->trace_present || memcmp(before->trace_id, trace_id, TRACE_ID_BYTES) != 0) {
        return false;
    }
    memcpy(local_root_id, before->transaction_id, SPAN_ID_BYTES);
    return true;
}

/* The thread ends, possibly without the GIL: the pointers go before the memory. */
static void give_up(void *record_of_thread)
{
    thread_record *record = record_of_thread;
    self.ended = true;
    self.record = NULL;
    pthread_mutex_lock(&registry.mutex);
    hide(record);
    *record->link = record->next;
    if (record->next != NULL) {
        record->next->link = record->link;
    }
    atomic_fetch_sub(&registry.count, 1);
    pthread_mutex_unlock(&registry.mutex);
    free(record);
}

/* ---- all threads ---- */

/* Static thread-local memory is at the same distance from every thread pointer, so a thread that waits inside a span for long
 * need not run for its pointer to be found. It cannot end meanwhile: for that it needs the mutex. */
void thread_records_use_library(library_kind kind, slot_accessor accessor, bool is_static)
{
    if (registry.accessors[kind] == accessor) {
        return;
    }
    intptr_t distance = (intptr_t)accessor() - thread_records_thread_pointer();
    pthread_mutex_lock(&registry.mutex);
    registry.accessors[kind] = accessor;
    for (thread_record *record = registry.first; record != NULL; record = record->next) {
        if (record->slots[kind] != NULL) {
            __atomic_store_n(record->slots[kind], NULL, __ATOMIC_RELEASE);
            record->slots[kind] = NULL;
        }
        if (is_static && record->generation == registry.generation) {
            record->slots[kind] = (void **)(record->thread_pointer + distance);
            record->generation++;
            if (record->shown) {
                show(record, record->current);
            }
        }
    }
    registry.generation++;
    pthread_mutex_unlock(&registry.mutex);
}

void thread_records_hide_all(void)
{
    pthread_mutex_lock(&registry.mutex);
    for (thread_record *record = registry.first; record != NULL; record = record->next) {
        hide(record);
    }
    pthread_mutex_unlock(&registry.mutex);
}

static int by_ident(const void *left, const void *right)
{
    unsigned long one = ((const true_context *)left)->ident, other = ((const true_context *)right)->ident;
    return (one > other) - (one < other);
}

size_t thread_records_repair(const true_context *threads, size_t count, size_t *repaired)
{
    size_t compared = 0;
    *repaired = 0;
    pthread_mutex_lock(&registry.mutex);
    for (thread_record *record = registry.first; record != NULL; record = record->next) {
        const true_context wanted = {.ident = record->ident};
        const true_context *found = bsearch(&wanted, threads, count, sizeof(true_context), by_ident);
        if (found == NULL || record->updates > 0) {
            continue;
        }
        compared += record->shown;
        uint64_t span = found->span == NULL ? 0 : found->span->serial;
        uint64_t labels = found->labels == NULL ? 0 : found->labels->serial;
        if (!record->shown || !holds(record->current, span, labels)) {
            *repaired += record->shown;
            show(record, half_with(record, found->span, found->labels));
        }
    }
    pthread_mutex_unlock(&registry.mutex);
    return compared;
}

size_t thread_records_count(void)
{
    return atomic_load(&registry.count);
}

/* ---- the process ---- */

/* Only the calling thread came along. The mutex is made anew, since its holder may be gone, and so is the list, which may
 * have been half changed. The records of the threads that are gone stay as they are, unreachable: to free them the mutex
 * would have to be held over the fork, and with it while other handlers wait for the GIL. */
static void forget_other_threads(void)
{
    atomic_store(&registry.process, (long)getpid());
    pthread_mutex_init(&registry.mutex, NULL);
    registry.first = self.record;
    atomic_store(&registry.count, self.record != NULL);
    if (self.record != NULL) {
        self.record->next = NULL;
        self.record->link = &registry.first;
    }
}

void thread_records_after_fork(void)
{
    if (registry.prepared && atomic_load(&registry.process) != (long)getpid()) { /* forked past the handlers */
        forget_other_threads();
    }
}

int thread_records_prepare_process(void)
{
    if (registry.prepared) {
        return 0;
    }
    atomic_store(&registry.process, (long)getpid());
    int problem = pthread_key_create(&registry.key, give_up);
    if (problem != 0) {
        return problem;
    }
    problem = pthread_atfork(NULL, NULL, forget_other_threads);
    if (problem != 0) {
        pthread_key_delete(registry.key);
        return problem;
    }
    registry.prepared = true;
    return 0;
}
