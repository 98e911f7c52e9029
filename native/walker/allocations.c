/* Samples of what the process allocates, for the next drain.
 *
 * The distance of two samples, in bytes that a thread allocates, is exponential. So an allocation of s bytes is sampled with the
 * probability p = 1 - exp(-s / mean), whatever came before it, and stands for 1/p allocations and s/p bytes. Sums are
 * then right on average for any mix of sizes.
 *
 * A sample is taken inside an allocation of the application. There no object is made, none ends, no Python code runs,
 * and no lock is taken but that of the C library's malloc.
 */
#include "py_compat.h"

#include "allocations.h"
#include "events.h"
#include "forks.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

/* Between two drains. Beyond SAMPLES_AT_MEAN the mean distance doubles with each SAMPLES_PER_DOUBLING: the last samples
 * stand for 32,768 times as much as the first. */
#define MAX_SAMPLES          1024
#define SAMPLES_AT_MEAN      512
#define SAMPLES_PER_DOUBLING 32

#define MERGE_SLOTS   256
#define DORMANT_BYTES (1 << 20) /* without a ticker: until a thread looks for one again */

typedef struct {
    raw_event event; /* first; its live_id is set at the drain */
    void *memory;    /* only compared */
    uint64_t id;
} raw_allocation;

/* GIL. */
typedef struct allocation_log {
    uint64_t last_id;
    recent_stacks stacks;
    live_heap *live; /* owned; NULL: blocks are not followed */
} allocation_log;

/* The hooks are process-wide, so one ticker has the samples. Atomic, as threads with another GIL read it. */
static struct {
    _Atomic(ticker_state *) ticker; /* NULL: none samples. Used with the GIL of `interp` only */
    PyInterpreterState *_Atomic interp;
    atomic_llong mean_bytes;
    _Atomic uint64_t random; /* state of the generator, never 0 */
    atomic_ulong period;     /* of one ticker: distances from before are drawn again */
} sampling;

THREAD_DISTANCE _Thread_local allocation_distance thread_distance;

/* xorshift64*: in [0, 1). */
static double draw(void)
{
    uint64_t state = atomic_load_explicit(&sampling.random, memory_order_relaxed);
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    atomic_store_explicit(&sampling.random, state, memory_order_relaxed);
    return (double)((state * 0x2545F4914F6CDD1Du) >> 11) * 0x1p-53;
}

/* The mean grows with the samples that wait for a drain, so a burst of allocations has room. Each sample has the
 * weight of the mean that its distance was drawn with. */
static double current_mean(const ticker_state *ticker)
{
    size_t count = ticker == NULL ? 0 : ticker->events[EVENT_ALLOCATION].count;
    double mean = (double)atomic_load_explicit(&sampling.mean_bytes, memory_order_relaxed);
    return count <= SAMPLES_AT_MEAN ? mean : ldexp(mean, (int)((count - SAMPLES_AT_MEAN) / SAMPLES_PER_DOUBLING));
}

/* Begin a distance `passed` bytes before now. Return false if it ends before now.
 *
 * A long one is divided, and the rest drawn anew, which an exponential distance allows: so each thread soon sees that
 * the mean has changed. */
static bool start_distance(double mean, double passed)
{
    double bytes = ceil(-log(1.0 - draw()) * mean) - passed;
    double most = 4.0 * (double)atomic_load_explicit(&sampling.mean_bytes, memory_order_relaxed);
    thread_distance = (allocation_distance){
        .left = (int64_t)fmin(bytes, most) - 1,
        .mean = mean,
        .period = atomic_load_explicit(&sampling.period, memory_order_relaxed),
        .is_part = bytes > most,
    };
    return bytes > 0;
}

/* The calling thread has counted `size` bytes, and its distance or a part of it has ended. Return the mean of the
 * distance that has ended in them; 0: none has, and another one has begun. */
static double end_distance(const ticker_state *ticker, size_t size)
{
    allocation_distance ended = thread_distance;
    bool is_current = ended.period == atomic_load_explicit(&sampling.period, memory_order_relaxed);
    double mean = current_mean(ticker);
    if (is_current && !ended.is_part) {
        return ended.mean;
    }
    return start_distance(mean, is_current ? (double)(-1 - ended.left) : (double)size) ? 0.0 : mean;
}

/* Return a whole number whose mean is `value`. */
static uint64_t round_randomly(double value)
{
    return (uint64_t)(value + draw());
}

static void append_sample(ticker_state *ticker, raw_allocation *kept, void *memory)
{
    allocation_log *log = ticker->allocations;
    kept->memory = memory;
    kept->id = ++log->last_id;
    kept->event.time_ns = clock_ns(CLOCK_REALTIME);
    events_append(ticker, EVENT_ALLOCATION, &kept->event);
    if (log->live != NULL && live_heap_add(log->live, memory, kept->id)) {
        ticker_state_count(ticker, COUNTERS_live_evicted, 1);
    }
}

static void keep_sample(ticker_state *ticker, void *memory, size_t size, double mean)
{
    allocation_log *log = ticker->allocations;
    double probability = -expm1(-(double)size / mean);
    bool has_room = ticker->events[EVENT_ALLOCATION].count < MAX_SAMPLES;
    raw_allocation *kept = has_room ? calloc(1, sizeof(raw_allocation)) : NULL;
    if (kept == NULL) {
        ticker_state_count(ticker, COUNTERS_allocations_lost, 1);
    }
    else if (!capture_calling_thread(ticker, &kept->event.thread, &log->stacks)) {
        free(kept); /* no Python code allocates */
    }
    else {
        kept->event.count = round_randomly(1.0 / probability);
        kept->event.amount = round_randomly((double)size / probability);
        append_sample(ticker, kept, memory);
    }
}

/* Return the sampling ticker if the calling thread holds its GIL, and may use it; else NULL. */
static ticker_state *usable_ticker(const PyThreadState *self)
{
    if (self == NULL || self->interp != atomic_load(&sampling.interp)) {
        return NULL;
    }
    ticker_state *ticker = atomic_load(&sampling.ticker);
    return ticker == NULL || ticker_state_is_ended(ticker) || compat_is_finalizing() ? NULL : ticker;
}

void allocations_take_sample(void *memory, size_t size)
{
    if (atomic_load(&sampling.ticker) == NULL) {
        thread_distance = (allocation_distance){.left = DORMANT_BYTES};
        return;
    }
    int error = errno;
    PyThreadState *self = compat_calling_thread();
    ticker_state *ticker = usable_ticker(self);
    double mean = end_distance(ticker, size);
    /* What is left out here is left out whatever its size, and the other samples stay right. */
    if (mean > 0.0 && memory != NULL && size > 0 && ticker != NULL && !ticker->scratch.is_in_use
        && !gil_keeper_is_profiler_thread(self)) {
        compat_exception pending = compat_save_exception();
        keep_sample(ticker, memory, size, mean);
        compat_restore_exception(pending);
    }
    if (mean > 0.0) {
        (void)start_distance(current_mean(ticker), 0.0);
    }
    errno = error;
}

void allocations_end_block(void *memory)
{
    ticker_state *ticker = usable_ticker(compat_calling_thread());
    if (ticker != NULL && ticker->allocations->live != NULL) {
        live_heap_end(ticker->allocations->live, memory);
    }
}

static allocation_log *log_new(bool tracks_live)
{
    allocation_log *log = calloc(1, sizeof(allocation_log));
    if (log != NULL && tracks_live) {
        log->live = calloc(1, sizeof(live_heap));
    }
    if (log == NULL || (tracks_live && log->live == NULL)) {
        free(log);
        return (allocation_log *)PyErr_NoMemory();
    }
    if (tracks_live) {
        live_heap_init(log->live);
    }
    return log;
}

bool allocations_start(ticker_state *ticker, int64_t sample_bytes, bool tracks_live)
{
    ticker_state *current = atomic_load(&sampling.ticker);
    if (current == ticker || ticker->allocations != NULL) {
        PyErr_SetString(PyExc_RuntimeError, "a ticker samples allocations once");
        return false;
    }
    if (current != NULL) {
        allocations_stop(current);
    }
    allocation_log *log = log_new(tracks_live);
    if (log == NULL) {
        return false;
    }
    if (allocator_hooks_install(tracks_live) == HOOKS_REFUSED) {
        allocator_hooks_remove();
        free(log->live);
        free(log);
        PyErr_SetString(PyExc_RuntimeError, "allocators cannot be hooked: there are several interpreters, or other"
                                            " libraries have removed the hooks too often");
        return false;
    }
    ticker->allocations = log;
    /* A forked child draws other numbers than its parent. */
    atomic_store(&sampling.random, ((uint64_t)monotonic_ns() ^ (uintptr_t)ticker) * 0x9E3779B97F4A7C15u | 1);
    atomic_store(&sampling.mean_bytes, sample_bytes);
    atomic_store(&sampling.interp, ticker->interp);
    atomic_store(&sampling.ticker, ticker);
    atomic_fetch_add(&sampling.period, 1);
    (void)start_distance((double)sample_bytes, 0.0);
    return true;
}

/* Distances that have begun end as they were drawn: begun anew where they end, what they have counted would be lost. */
void allocations_set_sample_bytes(ticker_state *ticker, int64_t sample_bytes)
{
    if (atomic_load(&sampling.ticker) == ticker) {
        atomic_store(&sampling.mean_bytes, sample_bytes);
    }
}

void allocations_stop(ticker_state *ticker)
{
    if (atomic_load(&sampling.ticker) != ticker) {
        return;
    }
    atomic_store(&sampling.ticker, NULL);
    allocator_hooks_remove();
    live_heap_close();
}

void allocations_close(void)
{
    ticker_state *ticker = atomic_load(&sampling.ticker);
    if (ticker != NULL) {
        allocations_stop(ticker);
    }
}

static bool is_same_thread(const raw_thread *one, const raw_thread *other)
{
    return one->stack == other->stack && one->key == other->key && one->context == other->context
           && one->labels == other->labels && one->python_thread == other->python_thread;
}

/* Add up samples of blocks that are no longer in use: those of one place, thread, context and labels become one. No
 * Python code runs: the one that stays holds all objects of the others. */
static void merge_ended(ticker_state *ticker, allocation_log *log)
{
    raw_allocation *merged[MERGE_SLOTS] = {NULL};
    event_queue *queue = &ticker->events[EVENT_ALLOCATION];
    raw_event **link = &queue->oldest;
    while (*link != NULL) {
        raw_allocation *each = (raw_allocation *)*link;
        bool is_live = log->live != NULL && live_heap_report(log->live, each->memory, each->id);
        raw_allocation **slot =
            &merged[((uintptr_t)each->event.thread.stack >> 5 ^ each->event.thread.key) % MERGE_SLOTS];
        each->event.live_id = is_live ? each->id : 0;
        if (is_live || *slot == NULL || !is_same_thread(&(*slot)->event.thread, &each->event.thread)) {
            *slot = is_live ? *slot : each;
            link = &each->event.next;
            continue;
        }
        (*slot)->event.count += each->event.count;
        (*slot)->event.amount += each->event.amount;
        *link = each->event.next;
        queue->count--;
        event_free(ticker, &each->event);
    }
    queue->end = link;
}

/* Return a new list, and forget the ids in it. */
static PyObject *take_ended(live_heap *live)
{
    PyObject *ended = PyList_New(0);
    while (ended != NULL && live != NULL && live->ended_count > 0) {
        (void)append_item(&ended, PyLong_FromUnsignedLongLong(live->ended[--live->ended_count]));
    }
    return ended;
}

PyObject *allocations_drain(ticker_state *ticker, const module_state *module)
{
    allocation_log *log = ticker->allocations;
    if (log == NULL) {
        return Py_BuildValue("(NN)", PyList_New(0), PyList_New(0));
    }
    /* Another library may have restored the allocators from before; then ends of blocks have been missed. */
    hooks_state hooks =
        atomic_load(&sampling.ticker) == ticker ? allocator_hooks_install(log->live != NULL) : HOOKS_STAYED;
    if (hooks != HOOKS_STAYED && log->live != NULL) {
        ticker_state_count(ticker, COUNTERS_live_forgotten, (int64_t)live_heap_end_all(log->live));
    }
    ticker_state_count(ticker, COUNTERS_hooks_refused, hooks == HOOKS_REFUSED);
    recent_stacks_clear(ticker, &log->stacks);
    merge_ended(ticker, log);
    PyObject *drained = events_drain(ticker, module, EVENT_ALLOCATION);
    return drained == NULL ? NULL : Py_BuildValue("(NN)", drained, take_ended(log->live));
}

void allocations_release(ticker_state *ticker)
{
    allocation_log *log = ticker->allocations;
    if (log == NULL) {
        return;
    }
    allocations_stop(ticker);
    recent_stacks_clear(ticker, &log->stacks);
    free(log->live);
    log->live = NULL;
}
