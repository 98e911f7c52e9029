/* Samples of what the process allocates, for the next drain.
 *
 * The distance of two samples, in allocated bytes, is exponential. So an allocation of s bytes is sampled with the
 * probability p = 1 - exp(-s / mean), whatever came before it, and stands for 1/p allocations and s/p bytes. Sums are
 * then right on average for any mix of sizes.
 *
 * A sample is taken inside an allocation of the application. There no object is made, none ends, no Python code runs,
 * and no lock is taken.
 */
#include "py_compat.h"

#include "allocations.h"
#include "forks.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#define MAX_SAMPLES 1024 /* between two drains; the next one carries the weight of others */

typedef struct raw_allocation {
    struct raw_allocation *next;
    void *memory; /* only compared */
    uint64_t id;
    int64_t time_ns;
    uint64_t object_count, byte_count; /* allocations that it stands for */
    uint64_t lost_objects, lost_bytes; /* those of samples for which there was no room */
    raw_thread thread;
} raw_allocation;

/* GIL. */
typedef struct allocation_log {
    raw_allocation *oldest;
    raw_allocation **end; /* where the next one is linked in */
    size_t count;
    uint64_t last_id;
    uint64_t lost_objects, lost_bytes; /* for the next sample */
    live_heap *live;                   /* owned; NULL: blocks are not followed */
} allocation_log;

/* The hooks are process-wide, so one ticker has the samples. Atomic, as threads with another GIL read it. */
static struct {
    _Atomic(ticker_state *) ticker; /* NULL: none samples. Used with the GIL of `interp` only */
    PyInterpreterState *_Atomic interp;
    atomic_llong mean_bytes;
    _Atomic uint64_t random; /* state of the generator, never 0 */
} sampling;

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

static void start_distance(void)
{
    double mean = (double)atomic_load_explicit(&sampling.mean_bytes, memory_order_relaxed);
    allocator_hooks_set_left((int64_t)ceil(-log(1.0 - draw()) * mean));
}

/* Return a whole number whose mean is `value`. */
static uint64_t round_randomly(double value)
{
    return (uint64_t)(value + draw());
}

static void append_sample(ticker_state *ticker, raw_allocation *kept, void *memory)
{
    allocation_log *log = ticker->allocations;
    kept->next = NULL;
    kept->memory = memory;
    kept->id = ++log->last_id;
    kept->time_ns = clock_ns(CLOCK_REALTIME);
    kept->lost_objects = log->lost_objects;
    kept->lost_bytes = log->lost_bytes;
    log->lost_objects = log->lost_bytes = 0;
    *log->end = kept;
    log->end = &kept->next;
    log->count++;
    if (log->live != NULL && live_heap_add(log->live, memory, kept->id)) {
        ticker_state_count(ticker, COUNTERS_live_evicted, 1);
    }
}

static void keep_sample(ticker_state *ticker, void *memory, size_t size)
{
    allocation_log *log = ticker->allocations;
    double probability = -expm1(-(double)size / (double)atomic_load(&sampling.mean_bytes));
    uint64_t object_count = round_randomly(1.0 / probability);
    uint64_t byte_count = round_randomly((double)size / probability);
    raw_allocation *kept = log->count < MAX_SAMPLES ? malloc(sizeof(raw_allocation)) : NULL;
    ticker_state_count(ticker, COUNTERS_allocations, 1);
    if (kept == NULL) {
        ticker_state_count(ticker, COUNTERS_allocations_lost, 1);
        log->lost_objects += object_count;
        log->lost_bytes += byte_count;
    }
    else if (!capture_calling_thread(ticker, &kept->thread)) {
        free(kept); /* no Python code allocates */
    }
    else {
        kept->object_count = object_count;
        kept->byte_count = byte_count;
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
        allocator_hooks_set_left(INT64_MAX);
        return;
    }
    int error = errno;
    start_distance();
    PyThreadState *self = compat_calling_thread();
    ticker_state *ticker = usable_ticker(self);
    /* What is left out here is left out whatever its size, and the other samples stay right. Without a size, it is the
     * update of another interpreter that has ended the distance. */
    if (memory != NULL && size > 0 && ticker != NULL && !ticker->scratch.is_in_use
        && !gil_keeper_is_profiler_thread(self)) {
        int64_t start_ns = monotonic_ns();
        compat_exception pending = compat_save_exception();
        keep_sample(ticker, memory, size);
        compat_restore_exception(pending);
        ticker_state_count(ticker, COUNTERS_allocation_ns_sum, monotonic_ns() - start_ns);
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
    log->end = &log->oldest;
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
    if (allocator_hooks_install() == HOOKS_REFUSED) {
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
    start_distance();
    return true;
}

/* The next distance begins anew: an exponential distance may do so at any time. */
void allocations_set_sample_bytes(ticker_state *ticker, int64_t sample_bytes)
{
    if (atomic_load(&sampling.ticker) == ticker) {
        atomic_store(&sampling.mean_bytes, sample_bytes);
        start_distance();
    }
}

void allocations_stop(ticker_state *ticker)
{
    if (atomic_load(&sampling.ticker) != ticker) {
        return;
    }
    atomic_store(&sampling.ticker, NULL);
    allocator_hooks_set_left(INT64_MAX);
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

static raw_allocation *pop(allocation_log *log)
{
    raw_allocation *taken = log->oldest;
    if (taken != NULL) {
        log->oldest = taken->next;
        log->end = log->oldest == NULL ? &log->oldest : log->end;
        log->count--;
    }
    return taken;
}

/* Return a new reference. */
static PyObject *convert_allocation(ticker_state *ticker, const module_state *module, const raw_allocation *raw,
                                    uint64_t live_id)
{
    PyObject *thread = convert_thread(ticker, module, &raw->thread);
    if (thread == NULL) {
        return NULL;
    }
    PyObject *items[] = {
        [ALLOCATION_time_ns] = PyLong_FromLongLong(raw->time_ns),
        [ALLOCATION_thread] = thread,
        [ALLOCATION_live_id] = PyLong_FromUnsignedLongLong(live_id),
        [ALLOCATION_object_count] = PyLong_FromUnsignedLongLong(raw->object_count),
        [ALLOCATION_byte_count] = PyLong_FromUnsignedLongLong(raw->byte_count),
        [ALLOCATION_lost_objects] = PyLong_FromUnsignedLongLong(raw->lost_objects),
        [ALLOCATION_lost_bytes] = PyLong_FromUnsignedLongLong(raw->lost_bytes),
    };
    return make_tuple(module->types[RAW_ALLOCATION], items, ALLOCATION_FIELD_COUNT);
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
    ticker_state_free_unreferenced(ticker);
    PyObject *drained = PyList_New(0);
    if (log == NULL) {
        return drained == NULL ? NULL : Py_BuildValue("(NN)", drained, PyList_New(0));
    }
    /* Another library may have restored the allocators from before; then ends of blocks have been missed. */
    if (atomic_load(&sampling.ticker) == ticker && allocator_hooks_install() != HOOKS_STAYED && log->live != NULL) {
        live_heap_end_all(log->live);
    }
    /* Samples that are taken meanwhile are for the next drain. */
    for (size_t left = log->count; drained != NULL && left > 0; left--) {
        raw_allocation *taken = pop(log);
        if (taken == NULL) {
            break; /* another drain took it meanwhile */
        }
        bool is_live = log->live != NULL && live_heap_report(log->live, taken->memory, taken->id);
        (void)append_item(&drained, convert_allocation(ticker, module, taken, is_live ? taken->id : 0));
        thread_release(ticker, &taken->thread);
        free(taken);
    }
    ticker_state_free_unreferenced(ticker);
    return drained == NULL ? NULL : Py_BuildValue("(NN)", drained, take_ended(log->live));
}

void allocations_release(ticker_state *ticker)
{
    allocation_log *log = ticker->allocations;
    if (log == NULL) {
        return;
    }
    allocations_stop(ticker);
    for (raw_allocation *kept; (kept = pop(log)) != NULL;) {
        thread_release(ticker, &kept->thread);
        free(kept);
    }
    free(log->live);
    log->live = NULL;
}

int allocations_traverse(ticker_state *ticker, visitproc visit, void *arg)
{
    int stop = 0;
    const raw_allocation *kept = ticker->allocations == NULL ? NULL : ticker->allocations->oldest;
    for (; kept != NULL && stop == 0; kept = kept->next) {
        stop = thread_traverse(&kept->thread, visit, arg);
    }
    return stop;
}
