/* Takes a snapshot. The caller holds the GIL during the whole call.
 *
 * Two phases. First walk.c walks the thread states into scratch memory, without references. Then changed
 * stacks are copied into stacks that own their code. The GIL is still held, so that no frame, code object or
 * context can go away. No reference is released here: that can run finalisers, and belongs to drain.
 */
#include "py_compat.h"

#include "ticker_state.h"

#include <stdlib.h>
#include <string.h>

static raw_stack *stack_new(ticker_state *ticker, const scratch_thread *thread)
{
    raw_stack *stack = malloc(sizeof(raw_stack) + thread->depth * sizeof(raw_frame));
    if (stack == NULL) {
        return NULL;
    }
    memcpy(stack->frames, ticker->frames + thread->first, thread->depth * sizeof(raw_frame));
    for (size_t i = 0; i < thread->depth; i++) {
        Py_INCREF(stack->frames[i].code);
        Py_INCREF(stack->frames[i].globals);
    }
    stack->depth = thread->depth;
    stack->truncated = thread->truncated;
    stack->stack = NULL;
    stack->refcount = 0;
    stack->next_unreferenced = NULL;
    stack->previous = NULL;
    stack->next = ticker->stacks;
    if (ticker->stacks != NULL) {
        ticker->stacks->previous = stack;
    }
    ticker->stacks = stack;
    return stack;
}

void stack_unref(ticker_state *ticker, raw_stack *stack)
{
    if (--stack->refcount == 0) {
        stack->next_unreferenced = ticker->unreferenced_stacks;
        ticker->unreferenced_stacks = stack;
    }
}

/* Runs after a focused capture, between two of all threads. Other threads keep their last stacks. New threads
 * wait for the next capture of all. */
static void save_previous_focused(ticker_state *ticker, const raw_snapshot *snapshot)
{
    size_t left = ticker->last_count;
    for (size_t i = 0; i < snapshot->count; i++) {
        const raw_thread *thread = &snapshot->threads[i];
        while (left > 0 && ticker->last_stacks[left - 1].key < thread->key) {
            left--;
        }
        if (left > 0 && ticker->last_stacks[left - 1].key == thread->key) {
            thread->stack->refcount++;
            stack_unref(ticker, ticker->last_stacks[left - 1].stack);
            ticker->last_stacks[left - 1].stack = thread->stack;
        }
    }
}

/* Keep the stacks of this capture for the next one to compare with. */
static void save_previous(ticker_state *ticker, raw_snapshot *snapshot, int64_t deadline_ns)
{
    bool is_last = !snapshot->is_focused || !atomic_load(&ticker->has_full_captures);
    clocks_fill(ticker, snapshot, deadline_ns, is_last);
    if (!is_last) {
        save_previous_focused(ticker, snapshot);
        return;
    }
    for (size_t i = 0; i < snapshot->count; i++) {
        snapshot->threads[i].stack->refcount++;
    }
    for (size_t i = 0; i < ticker->last_count; i++) {
        stack_unref(ticker, ticker->last_stacks[i].stack);
    }
    ticker->last_count = snapshot->count;
    for (size_t i = 0; i < snapshot->count; i++) {
        const raw_thread *thread = &snapshot->threads[snapshot->count - 1 - i];
        ticker->last_stacks[i] = (last_stack){thread->key, thread->native_id, thread->stack};
    }
}

static void materialize_thread(ticker_state *ticker, PyThreadState *self, const scratch_thread *scratch,
                               raw_stack *stack, raw_thread *thread)
{
    /* Look up only threads that are new or have moved: idle threads cost nothing. */
    PyObject *python_thread = scratch->unchanged_stack != NULL ? NULL : thread_objects_find(ticker, scratch->ident);
    /* A thread in a span without labels has one variable: then no labels are looked up. */
    Py_ssize_t variables = compat_context_size(scratch->context);
    PyObject *context = variables > 0 ? compat_context_value(self, scratch->context, ticker->context_var) : NULL;
    bool has_more = variables > (context != NULL);
    stack->refcount++;
    *thread = (raw_thread){
        .key = scratch->key,
        .ident = scratch->ident,
        .native_id = scratch->native_id != 0 ? scratch->native_id : thread_objects_native_id(ticker, python_thread),
        .stack = stack,
        .context = context,
        .labels = has_more ? compat_context_value(self, scratch->context, ticker->labels_var) : NULL,
        .python_thread = python_thread,
        .state = scratch->is_gil_holder ? THREAD_RUNNING : THREAD_UNKNOWN,
    };
}

static raw_snapshot *materialize_snapshot(ticker_state *ticker, size_t count)
{
    raw_snapshot *snapshot = malloc(sizeof(raw_snapshot) + count * sizeof(raw_thread));
    if (snapshot == NULL) {
        return NULL;
    }
    PyThreadState *self = PyThreadState_Get();
    snapshot->next = NULL;
    snapshot->count = 0;
    for (size_t i = 0; i < count; i++) {
        const scratch_thread *scratch = &ticker->scratch_threads[count - 1 - i];
        raw_stack *stack = scratch->unchanged_stack != NULL ? scratch->unchanged_stack : stack_new(ticker, scratch);
        if (stack == NULL) {
            /* drain releases the references, as those of an overwritten snapshot. */
            snapshot->next = ticker->discarded;
            ticker->discarded = snapshot;
            ticker->discarded_count++;
            return NULL;
        }
        materialize_thread(ticker, self, scratch, stack, &snapshot->threads[snapshot->count++]);
    }
    return snapshot;
}

bool capture_calling_thread(ticker_state *ticker, raw_thread *thread)
{
    scratch_thread scratch = {.first = 0};
    if (!walk_calling_thread(ticker, &scratch)) {
        return false;
    }
    raw_stack *stack = stack_new(ticker, &scratch);
    if (stack == NULL) {
        return false;
    }
    materialize_thread(ticker, PyThreadState_Get(), &scratch, stack, thread);
    return true;
}

static void ring_append(ticker_state *ticker, raw_snapshot *snapshot)
{
    size_t ready = atomic_load(&ticker->ready);
    if (ready == ticker->ring_size) {
        raw_snapshot *oldest = ticker->ring[ticker->ring_first];
        ticker->ring[ticker->ring_first] = snapshot;
        ticker->ring_first = (ticker->ring_first + 1) % ticker->ring_size;
        oldest->next = ticker->discarded;
        ticker->discarded = oldest;
        ticker->discarded_count++;
        atomic_fetch_add(&ticker->overwrites, 1);
        return;
    }
    ticker->ring[(ticker->ring_first + ready) % ticker->ring_size] = snapshot;
    atomic_store(&ticker->ready, ready + 1);
}

/* A focused snapshot without threads is not stored, so it wakes no thread. */
bool capture_snapshot(ticker_state *ticker, int64_t deadline_ns, bool is_focused, const PyThreadState *gil_holder)
{
    size_t count;
    int64_t start_ns = monotonic_ns();
    int64_t time_ns = time_of_day_ns(),
            since_previous_ns = ticker->previous_capture_ns == 0 ? 0 : start_ns - ticker->previous_capture_ns;
    /* A worker that never drains leaves at most two rings of snapshots; then no more are taken. */
    if (atomic_load(&ticker->is_closed) || ticker->discarded_count >= ticker->ring_size
        || !walk_stacks(ticker, is_focused, gil_holder, &count)) {
        return false;
    }
    ticker->previous_capture_ns = start_ns;
    if (is_focused && count == 0) {
        if (filter_is_empty(ticker)) {
            /* A trace is added first and notified after that, with the GIL. So no notification is lost
             * between these two lines. */
            atomic_store(&ticker->is_focus_active, false);
        }
        atomic_fetch_add(&ticker->captured, 1);
        atomic_fetch_add(&ticker->gil_held_ns_sum, monotonic_ns() - start_ns);
        return true;
    }
    raw_snapshot *snapshot = materialize_snapshot(ticker, count);
    if (snapshot == NULL) {
        return false;
    }
    snapshot->time_ns = time_ns;
    snapshot->is_focused = is_focused;
    snapshot->since_previous_ns = since_previous_ns;
    snapshot->latency_ns = deadline_ns == 0 ? 0 : start_ns - deadline_ns;
    snapshot->period_ns = deadline_ns == 0 ? 0 : atomic_load(&ticker->pending_period_ns);
    save_previous(ticker, snapshot, deadline_ns);
    ring_append(ticker, snapshot);
    atomic_fetch_add(&ticker->captured, 1);
    if (deadline_ns != 0) {
        atomic_fetch_add(&ticker->latency_ns_sum, snapshot->latency_ns);
        if (snapshot->latency_ns > atomic_load(&ticker->latency_ns_max)) {
            atomic_store(&ticker->latency_ns_max, snapshot->latency_ns);
        }
    }
    atomic_fetch_add(&ticker->gil_held_ns_sum, monotonic_ns() - start_ns);
    return true;
}
