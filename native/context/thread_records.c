/* Each thread's two halves and the pointers to them: write, show, repair, hide, and give up at the end. Plain C. */
#include "thread_records.h"

#include "record_buffer.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What a half holds, by serials; 0: none, and both 0: nothing that may be shown. */
typedef struct {
    uint64_t span, labels;
} context_serials;

typedef struct thread_record {
    void **slots[LIBRARY_KINDS]; /* this thread's pointers; NULL: no library of the kind */
    record_buffer *current;
    context_serials serials[2];         /* each half */
    unsigned generation;                /* of the libraries that the slots are of */
    bool is_shown;                      /* the pointers lead to `current` */
    uint8_t last_buffer;                /* which half was shown last: the other one is written next */
    struct thread_record *next, **link; /* mutex */
    unsigned long ident;                /* constant */
    intptr_t thread_pointer;            /* constant */
    unsigned updates_in_progress;       /* begun and not ended: what is shown is not expected to be right */
    record_buffer buffers[2];
    record_buffer empty; /* no span, no labels: always there, never written again */
} thread_record;

_Static_assert(offsetof(thread_record, next) == CACHE_LINE, "used at every switch");

/* What the process has: the list for those who do not own the records, and the libraries. */
static struct {
    pthread_mutex_t mutex;
    thread_record *first;                   /* mutex */
    atomic_size_t count;                    /* written with the mutex */
    slot_accessor accessors[LIBRARY_KINDS]; /* GIL */
    unsigned generation;                    /* GIL */
    bool is_prepared;                       /* GIL */
    pthread_key_t key;                      /* its destructor sees a thread end */
    atomic_long pid;                        /* whose records these are */
} registry = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static _Thread_local struct {
    thread_record *record; /* owned */
    bool has_ended;        /* the thread's destructors run: no record any more */
} this_thread;

/* The thread that was the last to look for its record: mostly it looks again, and so finds it without a call of the C
 * library. Written with the GIL held; but a thread that ends takes itself out without. */
static struct {
    _Atomic intptr_t thread_pointer; /* 0: nobody. Of that thread is: */
    thread_record *record;           /* GIL */
} cached_record;

/* ---- one record ---- */

static void set_pointers(const thread_record *record, const elastic_record *elastic, const custom_label_set *set)
{
    /* Complete before it is pointed to. Release, since other threads may do this. */
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

/* The half that holds this context; written now if none does, and then not the one that is shown. */
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
        record->serials[buffer_index] =
            (context_serials){0, 0}; /* a child forked in the middle must not take it for a whole one */
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

static COLD void find_slots(thread_record *record)
{
    for (int kind = 0; kind < LIBRARY_KINDS; kind++) {
        record->slots[kind] = registry.accessors[kind] == NULL ? NULL : registry.accessors[kind]();
    }
    record->generation = registry.generation;
    record->is_shown = false;
}

/* The calling thread is the latest from now on. Another one that ends sees its own pointer there or does not, and if it does,
 * `record` is not of any use to anybody. */
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

/* NULL: the thread needs none, or there is no memory for it. */
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

HOT show_result thread_records_show(const encoded_span *span, const encoded_labels *labels)
{
    thread_record *record = cached_record.record;
    if (atomic_load_explicit(&cached_record.thread_pointer, memory_order_relaxed) != thread_records_thread_pointer()) {
        bool is_needed = span != NULL || labels != NULL;
        record = get_record(is_needed);
        if (record == NULL) {
            return is_needed && !this_thread.has_ended ? NO_MEMORY : UNCHANGED;
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
    return SHOWN;
}

shown_root thread_records_begin_update(void)
{
    shown_root before = {.present = false};
    if (this_thread.record != NULL) {
        const elastic_record *current = &this_thread.record->current->elastic;
        before.present = current->trace_present;
        memcpy(before.trace_id, current->trace_id, sizeof(before.trace_id));
        memcpy(before.local_root_id, current->transaction_id, sizeof(before.local_root_id));
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

/* The thread ends, possibly without the GIL: the pointers go before the memory. */
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

static int compare_idents(const void *left, const void *right)
{
    unsigned long one = ((const expected_context *)left)->ident, other = ((const expected_context *)right)->ident;
    return (one > other) - (one < other);
}

size_t thread_records_repair(const expected_context *threads, size_t count, size_t *repaired)
{
    size_t compared = 0;
    *repaired = 0;
    pthread_mutex_lock(&registry.mutex);
    for (thread_record *record = registry.first; record != NULL; record = record->next) {
        const expected_context wanted = {.ident = record->ident};
        const expected_context *found = bsearch(&wanted, threads, count, sizeof(expected_context), compare_idents);
        if (found == NULL || record->updates_in_progress > 0) {
            continue;
        }
        compared += record->is_shown;
        record_buffer *right = buffer_with(record, found->span, found->labels);
        if (!record->is_shown || right != record->current) {
            *repaired += record->is_shown;
            show_buffer(record, right);
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
    if (registry.is_prepared && atomic_load(&registry.pid) != (long)getpid()) { /* forked past the handlers */
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
