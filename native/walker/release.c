/* Releases the references that captures took. Runs on the sampler thread (in drain) or where a Ticker ends.
 *
 * Every DECREF here may run a finaliser. So each object leaves the lists of the ticker first, and the lists
 * are read again afterwards. The exception of a failed drain is set aside meanwhile.
 */
#include "public_compat.h"

#include "allocations.h"
#include "events.h"
#include "loop_watch.h"

#include <stdlib.h>

static void stack_free(ticker_state *ticker, raw_stack *stack)
{
    if (stack->previous != NULL) {
        stack->previous->next = stack->next;
    }
    else {
        ticker->ring.stacks = stack->next;
    }
    if (stack->next != NULL) {
        stack->next->previous = stack->previous;
    }
    compat_exception pending = compat_save_exception();
    for (size_t i = 0; i < stack->depth; i++) {
        Py_DECREF(stack->frames[i].code);
        if (stack->stack == NULL) {
            Py_DECREF(stack->frames[i].globals);
        }
    }
    Py_XDECREF(stack->stack);
    compat_restore_exception(pending);
    free(stack);
}

void thread_release(ticker_state *ticker, raw_thread *thread)
{
    stack_unref(ticker, thread->stack);
    compat_exception pending = compat_save_exception();
    Py_XDECREF(thread->context);
    Py_XDECREF(thread->labels);
    Py_XDECREF(thread->python_thread);
    compat_restore_exception(pending);
}

raw_snapshot *snapshots_take(ticker_state *ticker)
{
    capture_quiet(ticker);
    raw_snapshot *oldest = ticker->ring.oldest;
    ticker->ring.oldest = NULL;
    ticker->ring.end = &ticker->ring.oldest;
    atomic_store(&ticker->ring.ready, 0);
    return oldest;
}

void snapshot_free(ticker_state *ticker, raw_snapshot *snapshot)
{
    for (size_t i = 0; i < snapshot->count; i++) {
        thread_release(ticker, &snapshot->threads[i]);
    }
    free(snapshot);
}

void ticker_state_free_unreferenced(ticker_state *ticker)
{
    snapshot_ring *ring = &ticker->ring;
    while (ring->discarded != NULL) {
        raw_snapshot *snapshot = ring->discarded;
        ring->discarded = snapshot->next;
        ring->discarded_count--;
        snapshot_free(ticker, snapshot);
    }
    while (ring->unreferenced_stacks != NULL) {
        raw_stack *stack = ring->unreferenced_stacks;
        ring->unreferenced_stacks = stack->next_unreferenced;
        stack_free(ticker, stack);
    }
}

void ticker_state_release_all(ticker_state *ticker)
{
    for (raw_snapshot *snapshot = snapshots_take(ticker), *next; snapshot != NULL; snapshot = next) {
        next = snapshot->next;
        snapshot_free(ticker, snapshot);
    }
    allocations_release(ticker);
    loops_release(ticker);
    events_release_all(ticker);
    size_t count = ticker->previous.count;
    ticker->previous.count = 0;
    for (size_t i = 0; i < count; i++) {
        stack_unref(ticker, ticker->previous.stacks[i].stack);
    }
    ticker_state_free_unreferenced(ticker);
    frame_cache_clear(&ticker->frame_cache);
    PyObject *owner = ticker->arguments.owner;
    ticker->arguments = (ticker_arguments){NULL};
    Py_XDECREF(owner);
    for (int i = 0; i < NAME_COUNT; i++) {
        Py_CLEAR(ticker->names[i]);
    }
}

int thread_traverse(const raw_thread *thread, visitproc visit, void *arg)
{
    Py_VISIT(thread->context);
    Py_VISIT(thread->labels);
    Py_VISIT(thread->python_thread);
    return 0;
}

int snapshot_traverse(const raw_snapshot *snapshot, visitproc visit, void *arg)
{
    int stop = 0;
    for (size_t i = 0; i < snapshot->count && stop == 0; i++) {
        stop = thread_traverse(&snapshot->threads[i], visit, arg);
    }
    return stop;
}

static int snapshots_traverse(const raw_snapshot *first, visitproc visit, void *arg)
{
    int stop = 0;
    for (; first != NULL && stop == 0; first = first->next) {
        stop = snapshot_traverse(first, visit, arg);
    }
    return stop;
}

/* Snapshots that a running drain has taken out of the ticker are not visited: the collector then counts them
 * as held from outside. */
int ticker_state_traverse(ticker_state *ticker, visitproc visit, void *arg)
{
    Py_VISIT(ticker->arguments.owner);
    for (const raw_stack *stack = ticker->ring.stacks; stack != NULL; stack = stack->next) {
        Py_VISIT(stack->stack);
        for (size_t i = 0; i < stack->depth; i++) {
            Py_VISIT(stack->frames[i].code);
            if (stack->stack == NULL) {
                Py_VISIT(stack->frames[i].globals);
            }
        }
    }
    for (size_t i = 0; i < ticker->frame_cache.size; i++) {
        Py_VISIT(ticker->frame_cache.slots[i].code_ref);
        Py_VISIT(ticker->frame_cache.slots[i].module);
        Py_VISIT(ticker->frame_cache.slots[i].frame);
    }
    int stop = snapshots_traverse(ticker->ring.oldest, visit, arg);
    if (stop == 0) {
        stop = snapshots_traverse(ticker->ring.discarded, visit, arg);
    }
    if (stop == 0 && ticker->loop_watch != NULL) {
        stop = loops_traverse(ticker->loop_watch, visit, arg);
    }
    return stop != 0 ? stop : events_traverse_all(ticker, visit, arg);
}
