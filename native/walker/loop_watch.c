/* Finds callbacks that hold their event loop for long, from looks in a row.
 *
 * A loop enters a context before each callback and leaves it afterwards, and CPython counts both. So a thread
 * that has done neither between two looks was in one callback all the time, or in none: its stack tells. It is captured,
 * with the task that runs, at the first look after a third of the threshold: what a callback begins with is seldom what
 * blocks, and a loop that is busy with short callbacks costs no capture. A callback that itself runs code in another
 * context is missed.
 *
 * Looks come with each capture, and where these are rare, in between (schedule.c). Those in between begin as peeks, which
 * compare CPython's counts without the GIL. While code in C keeps the GIL there is no look. The thread that had the GIL
 * when the late look was asked for, and still has it, was in one callback all the time.
 */
#include "task_compat.h"

#include "events.h"
#include "lock_holders.h"
#include "loop_watch.h"
#include "tasks.h"

#include <stdlib.h>

#define MAX_UNREPORTED_NS SECOND_NS /* a loop may be blocked for ever */
#define MIN_LOOK_NS       10000000LL
#define LOOK_PERCENT      35 /* of the threshold: three periods pass it even where one is shorter than it should be */
#define MAX_LOOK_COST_NS  2000000LL /* longer ones were interrupted: this is wall time */
#define LOOPS_KEPT_NS     (10 * SECOND_NS)
#define MAX_SLOWDOWN      1000.0
#define MAX_KEPT          128       /* that wait for a drain */
#define MAX_PEEKS_NS      SECOND_NS /* then there is a look in any case */

enum { GIVEN_NAME, COROUTINE_NAME }; /* in raw_event.details */

/* The time in which a thread has neither entered nor left a context. */
typedef struct {
    /* First; with the time of the last look, the thread, and the names of the task that ran: a task itself may be freed on
     * its own thread only. */
    raw_event event;
    uint64_t key, context_switches;
    int64_t since_ns, until_ns; /* first and last look, on the boot-time clock */
    bool is_continued;          /* its beginning has been reported */
    bool has_thread;
} loop_block;

struct loop_watch {
    int64_t threshold_ns;
    PyObject *current_tasks; /* owned, or NULL */
    PyTypeObject *task_type; /* owned */
    loop_block *running[MAX_LOOPS];
    size_t running_count;
    int64_t seen_ns;            /* when a look has found a loop */
    atomic_flag is_peek_locked; /* whoever has set it reads and writes the next four; nobody waits for it */
    thread_switches peeked[MAX_LOOPS];
    size_t peeked_count;     /* 0: a look is needed */
    uint64_t other_switches; /* of all threads that ran no loop: each may begin one */
    int64_t looked_ns;
    running_loop loops[MAX_LOOPS]; /* of the look that runs: threads of the application may have small stacks */
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
    atomic_flag_clear(&watch->is_peek_locked);
    watch->current_tasks = Py_XNewRef(current_tasks);
    watch->task_type = (PyTypeObject *)Py_NewRef(task_type);
    watch->seen_ns = monotonic_ns(); /* one may be about to run */
    ticker->loop_watch = watch;
    atomic_store(&ticker->loop.has_loops, true);
    loops_slow_down(ticker, 1);
    return true;
}

void loops_slow_down(ticker_state *ticker, double ratio)
{
    if (ticker->loop_watch != NULL) {
        int64_t look_ns = ticker->loop_watch->threshold_ns * LOOK_PERCENT / 100;
        look_ns = look_ns < MIN_LOOK_NS ? MIN_LOOK_NS : look_ns;
        ticker_state_set_look_period(ticker, ratio < MAX_SLOWDOWN ? (int64_t)((double)look_ns * ratio) : MAX_PERIOD_NS);
    }
}

static void begin_block(loop_watch *watch, const scratch_thread *thread, int64_t since_ns, int64_t until_ns,
                        bool is_continued)
{
    loop_block *made = watch->running_count == MAX_LOOPS ? NULL : calloc(1, sizeof(loop_block));
    if (made != NULL) {
        made->key = thread->key;
        made->context_switches = thread->context_switches;
        made->since_ns = since_ns;
        made->until_ns = until_ns;
        made->event.time_ns = clock_ns(CLOCK_REALTIME);
        made->is_continued = is_continued;
        watch->running[watch->running_count++] = made;
    }
}

/* References are released at the next drain. */
static void end_block(ticker_state *ticker, size_t index)
{
    loop_watch *watch = ticker->loop_watch;
    loop_block *ended = watch->running[index];
    watch->running[index] = watch->running[--watch->running_count];
    if (ended->has_thread) {
        ended->event.count = !ended->is_continued;
        ended->event.amount = (uint64_t)(ended->until_ns - ended->since_ns);
        ended->event.is_dropped = !ended->is_continued && ended->until_ns - ended->since_ns < watch->threshold_ns;
        events_append(ticker, EVENT_LOOP_BLOCK, &ended->event);
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

static loop_block *find_block(const loop_watch *watch, uint64_t key)
{
    for (size_t i = 0; i < watch->running_count; i++) {
        if (watch->running[i]->key == key) {
            return watch->running[i];
        }
    }
    return NULL;
}

/* Nothing has run up to the end of the quiet time. */
static void extend(loop_block *each, int64_t quiet_until_ns)
{
    int64_t longer_ns = quiet_until_ns - each->until_ns;
    each->until_ns += longer_ns > 0 ? longer_ns : 0;
    each->event.time_ns += longer_ns > 0 ? longer_ns : 0;
}

/* Return when a peek has first seen a thread in what it still does; else `now_ns`. */
static int64_t peeked_since_ns(const loop_watch *watch, const scratch_thread *thread, int64_t now_ns)
{
    for (size_t i = 0; i < watch->peeked_count; i++) {
        const thread_switches *each = &watch->peeked[i];
        if (each->key == thread->key && each->context_switches == thread->context_switches) {
            return each->since_ns;
        }
    }
    return now_ns;
}

/* Note what peeks are to compare with. Not while a stack is captured: its block ends where a look says so. */
static void prepare_peeks(ticker_state *ticker)
{
    loop_watch *watch = ticker->loop_watch;
    watch->looked_ns = monotonic_ns();
    watch->peeked_count = 0;
    for (size_t i = 0; i < watch->running_count; i++) {
        const loop_block *each = watch->running[i];
        if (each->has_thread) {
            watch->peeked_count = 0;
            return;
        }
        watch->peeked[watch->peeked_count++] = (thread_switches){each->key, each->context_switches, each->since_ns};
    }
    if (walk_switches(ticker, watch->peeked, watch->peeked_count, &watch->other_switches) != 0) {
        watch->peeked_count = 0; /* it failed, for none can have switched */
    }
}

bool loops_peek(ticker_state *ticker)
{
    loop_watch *watch = ticker->loop_watch;
    if (atomic_flag_test_and_set(&watch->is_peek_locked)) {
        return false;
    }
    uint64_t other_switches;
    bool have_switched =
        watch->peeked_count > 0 && monotonic_ns() - watch->looked_ns < MAX_PEEKS_NS
        && walk_switches(ticker, watch->peeked, watch->peeked_count, &other_switches) == watch->peeked_count
        && other_switches == watch->other_switches;
    atomic_flag_clear(&watch->is_peek_locked);
    return have_switched;
}

/* A block that is reported goes on as another one, whose stack is captured anew. */
static void update_blocks(ticker_state *ticker, const running_loop *loops, size_t count, int64_t held_ns,
                          bool has_peeks)
{
    loop_watch *watch = ticker->loop_watch;
    int64_t now_ns = clock_ns(CLOCK_BOOTTIME), time_ns = clock_ns(CLOCK_REALTIME);
    int64_t quiet_until_ns = atomic_load(&ticker->loop.quiet_until_ns);
    int64_t max_ns = watch->threshold_ns > MAX_UNREPORTED_NS ? watch->threshold_ns : MAX_UNREPORTED_NS;
    for (size_t i = watch->running_count; i-- > 0;) { /* from the end: the last one takes the place of one that ends */
        loop_block *each = watch->running[i];
        const running_loop *loop = find_loop(loops, count, each->key);
        if (loop == NULL || loop->thread.context_switches != each->context_switches) {
            extend(each, quiet_until_ns);
            end_block(ticker, i);
            continue;
        }
        each->until_ns = now_ns;
        each->event.time_ns = time_ns;
        if (each->has_thread && now_ns - each->since_ns >= max_ns) {
            end_block(ticker, i);
            begin_block(watch, &loop->thread, now_ns, now_ns, true);
        }
    }
    for (size_t i = 0; i < count; i++) {
        /* A thread that has never entered a context has run no callback. */
        if (loops[i].thread.context_switches > 0 && find_block(watch, loops[i].thread.key) == NULL) {
            int64_t since_ns = now_ns - (loops[i].thread.is_gil_holder ? held_ns : 0);
            int64_t peeked_ns = has_peeks ? peeked_since_ns(watch, &loops[i].thread, now_ns) : now_ns;
            begin_block(watch, &loops[i].thread, peeked_ns < since_ns ? peeked_ns : since_ns, now_ns, false);
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

/* Set `keys` to the threads of blocks that have no stack yet and have lasted for a third of the threshold; return their
 * number. */
static size_t find_wanted(const ticker_state *ticker, const running_loop *loops, size_t count, uint64_t *keys)
{
    loop_watch *watch = ticker->loop_watch;
    size_t wanted = 0;
    for (size_t i = 0; i < count; i++) { /* newest thread first */
        const loop_block *found = find_block(watch, loops[i].thread.key);
        if (found != NULL && !found->has_thread && found->until_ns - found->since_ns > watch->threshold_ns / 3
            && ticker->events[EVENT_LOOP_BLOCK].count + wanted < MAX_KEPT) {
            keys[wanted++] = found->key;
        }
    }
    return wanted;
}

/* Take the names of the task that a loop runs, as far as it is known. */
static void read_task(const loop_watch *watch, const running_loop *loop, loop_block *block)
{
    PyObject *task = find_task(watch, loop);
    if (task != NULL) {
        task_names names = tasks_read_names(task, watch->task_type);
        block->event.details[GIVEN_NAME] = Py_XNewRef(names.given);
        block->event.details[COROUTINE_NAME] = Py_XNewRef(names.coroutine);
    }
}

static void capture_threads(ticker_state *ticker, const running_loop *loops, size_t count)
{
    loop_watch *watch = ticker->loop_watch;
    uint64_t keys[MAX_LOOPS];
    size_t wanted = find_wanted(ticker, loops, count, keys);
    if (wanted == 0 || !walk_selected(ticker, keys, wanted)) {
        return;
    }
    for (size_t i = 0; i < ticker->scratch.count; i++) {
        const scratch_thread *scratch = &ticker->scratch.threads[i];
        const running_loop *loop = find_loop(loops, count, scratch->key);
        loop_block *found = find_block(watch, scratch->key);
        raw_stack *stack = loop == NULL || found == NULL ? NULL : scratch_stack(ticker, scratch);
        if (stack != NULL) {
            thread_materialize(ticker, scratch, stack, &found->event.thread);
            read_task(watch, loop, found);
            found->has_thread = true;
        }
    }
}

/* Return true if a block has no stack yet. */
static bool has_new_block(const loop_watch *watch)
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
    loop_watch *watch = ticker->loop_watch;
    if (watch == NULL) {
        return;
    }
    running_loop *loops = watch->loops;
    size_t count;
    int64_t start_ns = monotonic_ns();
    if (!walk_loops(ticker, loops, gil_holder, &count)) {
        return;
    }
    bool has_peeks =
        !atomic_flag_test_and_set(&watch->is_peek_locked); /* else a peek is under way, as late looks may meet */
    update_blocks(ticker, loops, count, gil_held_ns(ticker, gil_holder, since_ns, start_ns), has_peeks);
    capture_threads(ticker, loops, count);
    if (has_peeks) {
        prepare_peeks(ticker);
        atomic_flag_clear(&watch->is_peek_locked);
    }
    watch->seen_ns = count > 0 ? start_ns : watch->seen_ns;
    atomic_store(&ticker->loop.has_loops, start_ns - watch->seen_ns < LOOPS_KEPT_NS);
    atomic_store(&ticker->loop.needs_look, !has_peeks || has_new_block(watch));
    int64_t cost_ns = monotonic_ns() - start_ns;
    ticker_state_count(ticker, COUNTERS_look_ns_sum, cost_ns < MAX_LOOK_COST_NS ? cost_ns : MAX_LOOK_COST_NS);
}

static void end_all(ticker_state *ticker)
{
    const loop_watch *watch = ticker->loop_watch;
    while (watch->running_count > 0) {
        extend(watch->running[watch->running_count - 1], atomic_load(&ticker->loop.quiet_until_ns));
        end_block(ticker, watch->running_count - 1);
    }
}

void loops_release(ticker_state *ticker)
{
    loop_watch *watch = ticker->loop_watch;
    if (watch == NULL) {
        return;
    }
    end_all(ticker);
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
            stop = event_traverse(&watch->running[i]->event, visit, arg);
        }
    }
    return stop;
}

PyObject *loops_drain(ticker_state *ticker, const module_state *module)
{
    if (ticker->loop_watch != NULL && ticker_state_is_ended(ticker)) {
        end_all(ticker);
    }
    return events_drain(ticker, module, EVENT_LOOP_BLOCK);
}
