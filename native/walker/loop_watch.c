/* Finds callbacks that hold their event loop for long, from looks in a row.
 *
 * A loop enters a context before each callback and leaves it afterwards, and CPython counts both. So a thread
 * that has done neither between two looks was in one callback all the time, or in none: its stack tells. It is
 * captured at the second look, with the task that runs; a loop that is busy with short callbacks costs no
 * capture. A callback that itself runs code in another context is missed.
 *
 * Looks come with each capture, and where these are rare, in between (schedule.c). While code in C keeps the GIL there is
 * none. The thread that had the GIL when the late look was asked for, and still has it, was in one callback all the time.
 */
#include "task_compat.h"

#include "lock_holders.h"
#include "loop_watch.h"
#include "tasks.h"

#include <stdlib.h>

#define MAX_UNREPORTED_NS SECOND_NS /* a loop may be blocked for ever */
#define MIN_LOOK_NS       10000000LL
#define MAX_LOOK_COST_NS  2000000LL /* longer ones were interrupted: this is wall time */
#define LOOPS_KEPT_NS     (10 * SECOND_NS)
#define MAX_STRETCH       1000.0
#define MAX_KEPT          128 /* whose references wait for a drain */

/* The time in which a thread has neither entered nor left a context. */
typedef struct stretch {
    struct stretch *next; /* of those that have ended */
    uint64_t key, context_switches;
    int64_t since_ns, until_ns; /* first and last look, on the boot-time clock */
    int64_t time_ns;            /* of the last look since the epoch */
    bool is_continued;          /* its beginning has been reported */
    bool has_thread;
    raw_thread thread; /* at the second look */
    task_names names;  /* of the task that ran, owned: a task may be freed on its own thread only */
} stretch;

struct loop_watch {
    int64_t threshold_ns;
    PyObject *current_tasks; /* owned, or NULL */
    PyTypeObject *task_type; /* owned */
    stretch *running[MAX_LOOPS];
    size_t running_count;
    stretch *oldest; /* of those that have ended */
    stretch **end;
    size_t kept_count; /* stretches with references */
    int64_t seen_ns;   /* when a look has found a loop */
};

bool loops_watch(ticker_state *ticker, int64_t threshold_ns, PyObject *current_tasks, PyTypeObject *task_type)
{
    if (ticker->loop_watch != NULL) {
        return true;
    }
    loop_watch *watch = calloc(1, sizeof(loop_watch));
    if (watch == NULL) {
        PyErr_NoMemory();
        return false;
    }
    watch->threshold_ns = threshold_ns;
    watch->current_tasks = Py_XNewRef(current_tasks);
    watch->task_type = (PyTypeObject *)Py_NewRef(task_type);
    watch->end = &watch->oldest;
    watch->seen_ns = monotonic_ns(); /* one may be about to run */
    ticker->loop_watch = watch;
    atomic_store(&ticker->loop.has_loops, true);
    loops_stretch(ticker, 1);
    return true;
}

void loops_stretch(ticker_state *ticker, double ratio)
{
    if (ticker->loop_watch != NULL) {
        int64_t look_ns = ticker->loop_watch->threshold_ns / 2;
        look_ns = look_ns < MIN_LOOK_NS ? MIN_LOOK_NS : look_ns;
        ticker_state_set_look_period(ticker, ratio < MAX_STRETCH ? (int64_t)((double)look_ns * ratio) : MAX_PERIOD_NS);
    }
}

static void begin_stretch(loop_watch *watch, const scratch_thread *thread, int64_t since_ns, int64_t until_ns,
                          bool is_continued)
{
    stretch *made = watch->running_count == MAX_LOOPS ? NULL : calloc(1, sizeof(stretch));
    if (made != NULL) {
        made->key = thread->key;
        made->context_switches = thread->context_switches;
        made->since_ns = since_ns;
        made->until_ns = until_ns;
        made->time_ns = clock_ns(CLOCK_REALTIME);
        made->is_continued = is_continued;
        watch->running[watch->running_count++] = made;
    }
}

/* References are released at the next drain. */
static void end_stretch(loop_watch *watch, size_t index)
{
    stretch *ended = watch->running[index];
    watch->running[index] = watch->running[--watch->running_count];
    if (ended->has_thread) {
        *watch->end = ended;
        watch->end = &ended->next;
    }
    else {
        free(ended);
    }
}

static const running_loop *find_loop(const running_loop *loops, size_t count, uint64_t key)
{
    for (size_t i = 0; i < count; i++) {
        if (loops[i].thread.key == key) {
            return &loops[i];
        }
    }
    return NULL;
}

static stretch *find_stretch(const loop_watch *watch, uint64_t key)
{
    for (size_t i = 0; i < watch->running_count; i++) {
        if (watch->running[i]->key == key) {
            return watch->running[i];
        }
    }
    return NULL;
}

/* Nothing has run up to the end of the quiet time. */
static void extend(stretch *each, int64_t quiet_until_ns)
{
    int64_t longer_ns = quiet_until_ns - each->until_ns;
    each->until_ns += longer_ns > 0 ? longer_ns : 0;
    each->time_ns += longer_ns > 0 ? longer_ns : 0;
}

/* A stretch that is reported goes on as another one, whose stack is captured anew. */
static void update_stretches(ticker_state *ticker, const running_loop *loops, size_t count, int64_t held_ns)
{
    loop_watch *watch = ticker->loop_watch;
    int64_t now_ns = clock_ns(CLOCK_BOOTTIME), time_ns = clock_ns(CLOCK_REALTIME);
    int64_t quiet_until_ns = atomic_load(&ticker->loop.quiet_until_ns);
    int64_t max_ns = watch->threshold_ns > MAX_UNREPORTED_NS ? watch->threshold_ns : MAX_UNREPORTED_NS;
    for (size_t i = watch->running_count; i-- > 0;) { /* from the end: the last one takes the place of one that ends */
        stretch *each = watch->running[i];
        const running_loop *loop = find_loop(loops, count, each->key);
        if (loop == NULL || loop->thread.context_switches != each->context_switches) {
            extend(each, quiet_until_ns);
            end_stretch(watch, i);
            continue;
        }
        each->until_ns = now_ns;
        each->time_ns = time_ns;
        if (each->has_thread && now_ns - each->since_ns >= max_ns) {
            end_stretch(watch, i);
            begin_stretch(watch, &loop->thread, now_ns, now_ns, true);
        }
    }
    for (size_t i = 0; i < count; i++) {
        /* A thread that has never entered a context has run no callback. */
        if (loops[i].thread.context_switches > 0 && find_stretch(watch, loops[i].thread.key) == NULL) {
            int64_t since_ns = now_ns - (loops[i].thread.is_gil_holder ? held_ns : 0);
            begin_stretch(watch, &loops[i].thread, since_ns, now_ns, false);
        }
    }
}

/* Return the task that a loop runs, borrowed, or NULL. The dict is not asked for the loop: this could run the loop's
 * `__hash__`. */
static PyObject *find_task(const loop_watch *watch, const running_loop *loop)
{
    PyObject *key, *value, *task = loop->task;
    Py_ssize_t position = 0;
    while (task == NULL && watch->current_tasks != NULL && PyDict_Next(watch->current_tasks, &position, &key, &value)) {
        task = key == loop->loop ? value : NULL;
    }
    return task;
}

/* Capture the threads of stretches that have been seen twice. */
static void capture_threads(ticker_state *ticker, const running_loop *loops, size_t count)
{
    loop_watch *watch = ticker->loop_watch;
    uint64_t keys[MAX_LOOPS];
    size_t wanted = 0;
    for (size_t i = 0; i < count; i++) { /* newest thread first */
        const stretch *found = find_stretch(watch, loops[i].thread.key);
        if (found != NULL && !found->has_thread && found->until_ns > found->since_ns
            && watch->kept_count + wanted < MAX_KEPT) {
            keys[wanted++] = found->key;
        }
    }
    if (wanted == 0 || !walk_selected(ticker, keys, wanted)) {
        return;
    }
    for (size_t i = 0; i < ticker->scratch.count; i++) {
        const scratch_thread *scratch = &ticker->scratch.threads[i];
        const running_loop *loop = find_loop(loops, count, scratch->key);
        stretch *found = find_stretch(watch, scratch->key);
        raw_stack *stack = loop == NULL || found == NULL ? NULL : scratch_stack(ticker, scratch);
        if (stack != NULL) {
            thread_materialize(ticker, scratch, stack, &found->thread);
            PyObject *task = find_task(watch, loop);
            if (task != NULL) {
                found->names = tasks_read_names(task, watch->task_type);
                Py_XINCREF(found->names.given);
                Py_XINCREF(found->names.coroutine);
            }
            found->has_thread = true;
            watch->kept_count++;
        }
    }
}

/* Return true if a stretch has been seen only once. */
static bool has_new_stretch(const loop_watch *watch)
{
    for (size_t i = 0; i < watch->running_count; i++) {
        if (!watch->running[i]->has_thread) {
            return true;
        }
    }
    return false;
}

/* Return for how long one thread has kept the GIL from the time at which the look was asked for; 0: not for long, or not
 * known. Before CPython 3.12 the look is no pending call, which comes first: another callback may have begun. */
static int64_t gil_held_ns(ticker_state *ticker, const PyThreadState *gil_holder, int64_t since_ns, int64_t now_ns)
{
    bool is_held = COMPAT_ANY_THREAD_RUNS_CALLS && since_ns > 0 && now_ns - since_ns >= MIN_LOOK_NS
                   && gil_holder != NULL && gil_holder == atomic_load(&ticker->pending.gil_holder);
    return is_held ? now_ns - since_ns : 0;
}

void loops_look(ticker_state *ticker, const PyThreadState *gil_holder, int64_t since_ns)
{
    running_loop loops[MAX_LOOPS];
    loop_watch *watch = ticker->loop_watch;
    if (watch == NULL) {
        return;
    }
    size_t count;
    int64_t start_ns = monotonic_ns();
    if (!walk_loops(ticker, loops, gil_holder, &count)) {
        return;
    }
    update_stretches(ticker, loops, count, gil_held_ns(ticker, gil_holder, since_ns, start_ns));
    capture_threads(ticker, loops, count);
    watch->seen_ns = count > 0 ? start_ns : watch->seen_ns;
    atomic_store(&ticker->loop.has_loops, start_ns - watch->seen_ns < LOOPS_KEPT_NS);
    atomic_store(&ticker->loop.needs_look, has_new_stretch(watch));
    int64_t cost_ns = monotonic_ns() - start_ns;
    ticker_state_count(ticker, COUNTERS_look_ns_sum, cost_ns < MAX_LOOK_COST_NS ? cost_ns : MAX_LOOK_COST_NS);
}

static stretch *pop_oldest(loop_watch *watch)
{
    stretch *taken = watch->oldest;
    if (taken != NULL) {
        watch->oldest = taken->next;
        watch->end = watch->oldest == NULL ? &watch->oldest : watch->end;
        watch->kept_count--;
    }
    return taken;
}

static void stretch_free(ticker_state *ticker, stretch *taken)
{
    thread_release(ticker, &taken->thread);
    Py_XDECREF(taken->names.given);
    Py_XDECREF(taken->names.coroutine);
    free(taken);
}

static void end_all(ticker_state *ticker)
{
    loop_watch *watch = ticker->loop_watch;
    while (watch->running_count > 0) {
        extend(watch->running[watch->running_count - 1], atomic_load(&ticker->loop.quiet_until_ns));
        end_stretch(watch, watch->running_count - 1);
    }
}

void loops_release(ticker_state *ticker)
{
    loop_watch *watch = ticker->loop_watch;
    if (watch == NULL) {
        return;
    }
    end_all(ticker);
    for (stretch *taken; (taken = pop_oldest(watch)) != NULL;) {
        stretch_free(ticker, taken);
    }
    Py_CLEAR(watch->current_tasks);
    Py_CLEAR(watch->task_type);
}

int loops_traverse(const loop_watch *watch, visitproc visit, void *arg)
{
    int stop = 0;
    Py_VISIT(watch->current_tasks);
    Py_VISIT(watch->task_type);
    for (size_t i = 0; i < watch->running_count && stop == 0; i++) {
        if (watch->running[i]->has_thread) {
            stop = thread_traverse(&watch->running[i]->thread, visit, arg);
        }
    }
    for (const stretch *each = watch->oldest; each != NULL && stop == 0; each = each->next) {
        stop = thread_traverse(&each->thread, visit, arg);
    }
    return stop;
}

/* Return a new reference. */
static PyObject *convert_stretch(ticker_state *ticker, const module_state *module, const stretch *ended)
{
    PyObject *thread = convert_thread(ticker, module, &ended->thread);
    if (thread == NULL) {
        return NULL;
    }
    PyObject *items[] = {
        [BLOCK_time_ns] = PyLong_FromLongLong(ended->time_ns),
        [BLOCK_thread] = thread,
        [BLOCK_task_name] = new_ref_or_none(ended->names.given),
        [BLOCK_coroutine_name] = new_ref_or_none(ended->names.coroutine),
        [BLOCK_duration_ns] = PyLong_FromLongLong(ended->until_ns - ended->since_ns),
        [BLOCK_is_continued] = PyBool_FromLong(ended->is_continued),
    };
    return make_tuple(module->types[RAW_LOOP_BLOCK], items, BLOCK_FIELD_COUNT);
}

PyObject *loops_drain(ticker_state *ticker, const module_state *module)
{
    PyObject *drained = PyList_New(0);
    loop_watch *watch = ticker->loop_watch;
    if (watch == NULL) {
        return drained;
    }
    if (ticker_state_is_ended(ticker)) {
        end_all(ticker);
    }
    for (stretch *taken; drained != NULL && (taken = pop_oldest(watch)) != NULL;) {
        if (taken->is_continued || taken->until_ns - taken->since_ns >= watch->threshold_ns) {
            (void)append_item(&drained, convert_stretch(ticker, module, taken));
        }
        stretch_free(ticker, taken);
    }
    ticker_state_free_unreferenced(ticker);
    return drained;
}
