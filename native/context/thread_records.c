/* Each thread's two buffers and the pointers to them: write, show, repair, hide, and release at the end.
 * Plain C. */
#include "thread_records.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The content of a buffer, by serials; 0: none; both 0: nothing that may be shown. */
typedef struct {
    uint64_t span, labels;
} context_serials;

typedef struct thread_record {
    void **slots[LIBRARY_KINDS]; /* this thread's pointers; NULL: no library of the kind */
    record_buffer *current;
    context_serials serials[2];         /* of each buffer */
    unsigned generation;                /* of the libraries that `slots` belong to */
    bool is_shown;                      /* the pointers refer to `current` */
    uint8_t last_buffer;                /* index of the buffer shown last: the other one is written next */
    struct thread_record *next, **link; /* mutex */
    unsigned long ident;                /* constant */
    intptr_t thread_pointer;            /* constant */
    unsigned updates_in_progress;       /* begun and not ended: what is shown may differ from the context */
    record_buffer buffers[2];
    record_buffer empty; /* no span, no labels: never written again */
} thread_record;

_Static_assert(offsetof(thread_record, next) == CACHE_LINE, "used at every switch");

/* The process-wide state: the list of records for other threads, and the libraries. */
static struct {
    pthread_mutex_t mutex;
    thread_record *first;                   /* mutex */
    atomic_size_t count;                    /* written with the mutex */
    slot_accessor accessors[LIBRARY_KINDS]; /* GIL */
    unsigned generation;                    /* GIL */
    bool is_prepared;                       /* GIL */
    pthread_key_t key;                      /* its destructor runs at the end of a thread */
    atomic_long pid;                        /* process of these records */
} registry = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static _Thread_local struct {
    thread_record *record; /* owned */
    bool has_ended;        /* the thread's destructors run: make no more records */
} this_thread;

/* The thread that looked for its record last. It is usually the next one, too, and then needs no call of the
 * C library. Written with the GIL held, but a thread that ends removes itself without the GIL. */
static struct {
    _Atomic intptr_t thread_pointer; /* 0: none; otherwise the owner of `record` */
    thread_record *record;           /* GIL */
} cached_record;

static void set_pointers(const thread_record *record, const elastic_record *elastic, const custom_label_set *set)
{
    /* The content is complete before it is pointed to. Release, since other threads may call this. */
    if (record->slots[ELASTIC] != NULL) {
        __atomic_store_n(record->slots[ELASTIC], (void *)elastic, __ATOMIC_RELEASE);
    }
    if (record->slots[CUSTOM_LABELS] != NULL) {
        __atomic_store_n(record->slots[CUSTOM_LABELS], (void *)set, __ATOMIC_RELEASE);
    }
}

static context_serials serials_of(const encoded_span *span, const encoded_labels *labels)
{
    return (context_serials){span == NULL ? 0 : span->serial, labels == NULL ? 0 : labels->serial};
}

static bool is_same_context(context_serials one, context_serials other)
{
    return one.span == other.span && one.labels == other.labels;
}

/* Return the buffer that holds this context. If none does, write the one that is not shown. */
static record_buffer *buffer_with(thread_record *record, const encoded_span *span, const encoded_labels *labels)
{
    context_serials wanted = serials_of(span, labels);
    if (wanted.span == 0 && wanted.labels == 0) {
        return &record->empty;
    }
    uint8_t buffer_index = !record->last_buffer;
    if (is_same_context(record->serials[!buffer_index], wanted)) {
        buffer_index = !buffer_index;
    }
    else if (!is_same_context(record->serials[buffer_index], wanted)) {
        /* A child that is forked during the write must not take the buffer as complete. */
        record->serials[buffer_index] = (context_serials){0, 0};
        record_buffer_write(&record->buffers[buffer_index], span, labels);
        record->serials[buffer_index] = wanted;
    }
    record->last_buffer = buffer_index;
    return &record->buffers[buffer_index];
}

static void show_buffer(thread_record *record, record_buffer *wanted)
{
    record->current = wanted;
    record->is_shown = true;
    set_pointers(record, &wanted->elastic, &wanted->set);
}

static void hide_record(thread_record *record)
{
    record->is_shown = false;
    set_pointers(record, NULL, NULL);
}

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

static COLD void find_slots(thread_record *record)
{
    for (int kind = 0; kind < LIBRARY_KINDS; kind++) {
        record->slots[kind] = registry.accessors[kind] == NULL ? NULL : registry.accessors[kind]();
    }
    record->generation = registry.generation;
    record->is_shown = false;
}

/* Make the calling thread the latest one. Another thread that ends may or may not see its own pointer there.
 * If it does, no thread uses `record`. */
static void cache_record(thread_record *record)
{
    atomic_store_explicit(&cached_record.thread_pointer, 0, memory_order_relaxed);
    cached_record.record = record;
    atomic_store_explicit(&cached_record.thread_pointer, record->thread_pointer, memory_order_relaxed);
}

static void uncache_record(const thread_record *record)
{
    intptr_t expected = record->thread_pointer;
    (void)atomic_compare_exchange_strong_explicit(&cached_record.thread_pointer, &expected, 0, memory_order_relaxed,
                                                  memory_order_relaxed);
}

static thread_record *record_new(void)
{
    thread_record *record = aligned_alloc(CACHE_LINE, sizeof(thread_record));
    if (record == NULL) {
        return NULL;
    }
    memset(record, 0, sizeof(thread_record));
    if (pthread_setspecific(registry.key, record) != 0) {
        free(record);
        return NULL;
    }
    record->ident = (unsigned long)pthread_self();
    record->thread_pointer = thread_records_thread_pointer();
    record->current = &record->empty;
    record_buffer_init(&record->buffers[0]);
    record_buffer_init(&record->buffers[1]);
    record_buffer_init(&record->empty);
    record_buffer_write(&record->empty, NULL, NULL);
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
    this_thread.record = record;
    return record;
}

/* Return NULL if the thread needs no record, or there is no memory. */
static COLD thread_record *get_record(bool is_needed)
{
    thread_record *record = this_thread.record;
    if (record == NULL && is_needed && !this_thread.has_ended) {
        record = record_new();
    }
    if (record != NULL) {
        cache_record(record);
    }
    return record;
}

HOT switch_counter thread_records_show(const encoded_span *span, const encoded_labels *labels)
{
    thread_record *record = cached_record.record;
    if (atomic_load_explicit(&cached_record.thread_pointer, memory_order_relaxed) != thread_records_thread_pointer()) {
        bool is_needed = span != NULL || labels != NULL;
        record = get_record(is_needed);
        if (record == NULL) {
            return is_needed && !this_thread.has_ended ? FAILED : UNCHANGED;
        }
    }
    if (record->generation != registry.generation) {
        find_slots(record);
    }
    record_buffer *wanted = buffer_with(record, span, labels);
    if (wanted == record->current && record->is_shown) {
        return UNCHANGED;
    }
    show_buffer(record, wanted);
    return PUBLISHED;
}

elastic_record thread_records_begin_update(void)
{
    elastic_record before = {.trace_present = false};
    if (this_thread.record != NULL) {
        before = this_thread.record->current->elastic;
        this_thread.record->updates_in_progress++;
        if (this_thread.record->is_shown) {
            show_buffer(this_thread.record, &this_thread.record->empty);
        }
    }
    return before;
}

void thread_records_end_update(void)
{
    if (this_thread.record != NULL && this_thread.record->updates_in_progress > 0) {
        this_thread.record->updates_in_progress--;
    }
}

/* The thread ends, perhaps without the GIL: clear the pointers before freeing the memory. */
static void release_record(void *record_of_thread)
{
    thread_record *record = record_of_thread;
    this_thread.has_ended = true;
    this_thread.record = NULL;
    uncache_record(record);
    pthread_mutex_lock(&registry.mutex);
    hide_record(record);
    *record->link = record->next;
    if (record->next != NULL) {
        record->next->link = record->link;
    }
    atomic_fetch_sub(&registry.count, 1);
    pthread_mutex_unlock(&registry.mutex);
    free(record);
}

/* Static thread-local memory has the same distance from every thread pointer. So the pointer of a thread that
 * waits inside a span can be found without running it. That thread cannot end meanwhile: its end needs the
 * mutex. */
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
            if (record->is_shown) {
                show_buffer(record, record->current);
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
        hide_record(record);
    }
    pthread_mutex_unlock(&registry.mutex);
}

int expected_context_compare(const void *left, const void *right)
{
    unsigned long one = ((const expected_context *)left)->ident, other = ((const expected_context *)right)->ident;
    return (one > other) - (one < other);
}

repair_result thread_records_repair(const void *threads, size_t count, size_t size)
{
    repair_result result = {0, 0};
    pthread_mutex_lock(&registry.mutex);
    for (thread_record *record = registry.first; record != NULL; record = record->next) {
        const expected_context wanted = {.ident = record->ident};
        const expected_context *found = bsearch(&wanted, threads, count, size, expected_context_compare);
        if (found == NULL || !found->is_resolved || record->updates_in_progress > 0) {
            continue;
        }
        result.compared += record->is_shown;
        record_buffer *right = buffer_with(record, found->span, found->labels);
        if (!record->is_shown || right != record->current) {
            result.repaired += record->is_shown;
            show_buffer(record, right);
        }
    }
    pthread_mutex_unlock(&registry.mutex);
    return result;
}

size_t thread_records_count(void)
{
    return atomic_load(&registry.count);
}

/* Only the calling thread survived. The mutex is initialized again, since its holder may be gone; so is the
 * list, which may be half changed. The records of the other threads leak. Freeing them would need the mutex
 * across the fork, even while other handlers wait for the GIL. */
static void discard_other_threads(void)
{
    atomic_store(&registry.pid, (long)getpid());
    pthread_mutex_init(&registry.mutex, NULL);
    atomic_store(&cached_record.thread_pointer, 0);
    registry.first = this_thread.record;
    atomic_store(&registry.count, this_thread.record != NULL);
    if (this_thread.record != NULL) {
        this_thread.record->next = NULL;
        this_thread.record->link = &registry.first;
    }
}

void thread_records_after_fork(void)
{
    if (registry.is_prepared && atomic_load(&registry.pid) != (long)getpid()) { /* a fork without the handlers */
        discard_other_threads();
    }
}

int thread_records_prepare_process(void)
{
    if (registry.is_prepared) {
        return 0;
    }
    atomic_store(&registry.pid, (long)getpid());
    int problem = pthread_key_create(&registry.key, release_record);
    if (problem != 0) {
        return problem;
    }
    problem = pthread_atfork(NULL, NULL, discard_other_threads);
    if (problem != 0) {
        pthread_key_delete(registry.key);
        return problem;
    }
    registry.is_prepared = true;
    return 0;
}
