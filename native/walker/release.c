/* Releases the references that captures took. Runs on the worker thread (in drain) or where a Ticker ends.
 *
 * Every DECREF here may run a finaliser. So each object leaves the lists of the ticker first, and the lists
 * are read again afterwards.
 */
#include "ticker_state.h"

#include <stdlib.h>

static void stack_free(ticker_state *ticker, raw_stack *stack)
{
    if (stack->previous != NULL) {
        stack->previous->next = stack->next;
    }
    else {
        ticker->stacks = stack->next;
    }
    if (stack->next != NULL) {
        stack->next->previous = stack->previous;
    }
    Py_XDECREF(stack->stack);
    for (size_t i = 0; i < stack->depth; i++) {
        Py_DECREF(stack->frames[i].code);
        Py_DECREF(stack->frames[i].globals);
    }
    free(stack);
}

void thread_release(ticker_state *ticker, raw_thread *thread)
{
    stack_unref(ticker, thread->stack);
    Py_XDECREF(thread->context);
    Py_XDECREF(thread->labels);
    Py_XDECREF(thread->python_thread);
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
    while (ticker->discarded != NULL) {
        raw_snapshot *snapshot = ticker->discarded;
        ticker->discarded = snapshot->next;
        ticker->discarded_count--;
        snapshot_free(ticker, snapshot);
    }
    while (ticker->unreferenced_stacks != NULL) {
        raw_stack *stack = ticker->unreferenced_stacks;
        ticker->unreferenced_stacks = stack->next_unreferenced;
        stack_free(ticker, stack);
    }
}

void ticker_state_release_all(ticker_state *ticker)
{
    while (atomic_load(&ticker->ready) > 0) {
        raw_snapshot *snapshot = ticker->ring[ticker->ring_first];
        ticker->ring_first = (ticker->ring_first + 1) % ticker->ring_size;
        atomic_fetch_sub(&ticker->ready, 1);
        snapshot_free(ticker, snapshot);
    }
    raw_collection collection;
    while (collections_pop(ticker, &collection)) {
        thread_release(ticker, &collection.thread);
    }
    size_t count = ticker->last_count;
    ticker->last_count = 0;
    for (size_t i = 0; i < count; i++) {
        stack_unref(ticker, ticker->last_stacks[i].stack);
    }
    ticker_state_free_unreferenced(ticker);
    frame_cache_clear(ticker);
    Py_CLEAR(ticker->context_var);
    Py_CLEAR(ticker->labels_var);
    Py_CLEAR(ticker->threads);
    Py_CLEAR(ticker->make_frame);
    Py_CLEAR(ticker->make_stack);
    Py_CLEAR(ticker->name_key);
    Py_CLEAR(ticker->native_id_key);
    Py_CLEAR(ticker->traces);
    Py_CLEAR(ticker->span_key);
    Py_CLEAR(ticker->context_name);
    Py_CLEAR(ticker->generation_key);
}

static int snapshot_traverse(const raw_snapshot *snapshot, visitproc visit, void *arg)
{
    for (size_t i = 0; i < snapshot->count; i++) {
        Py_VISIT(snapshot->threads[i].context);
        Py_VISIT(snapshot->threads[i].labels);
        Py_VISIT(snapshot->threads[i].python_thread);
    }
    return 0;
}

/* Snapshots that a running drain has taken out of the ticker are not visited: the collector then counts them
 * as held from outside. */
int ticker_state_traverse(ticker_state *ticker, visitproc visit, void *arg)
{
    Py_VISIT(ticker->context_var);
    Py_VISIT(ticker->labels_var);
    Py_VISIT(ticker->threads);
    Py_VISIT(ticker->make_frame);
    Py_VISIT(ticker->make_stack);
    Py_VISIT(ticker->traces);
    for (const raw_stack *stack = ticker->stacks; stack != NULL; stack = stack->next) {
        Py_VISIT(stack->stack);
        for (size_t i = 0; i < stack->depth; i++) {
            Py_VISIT(stack->frames[i].code);
            Py_VISIT(stack->frames[i].globals);
        }
    }
    for (size_t i = 0, ready = atomic_load(&ticker->ready); i < ready; i++) {
        int stop = snapshot_traverse(ticker->ring[(ticker->ring_first + i) % ticker->ring_size], visit, arg);
        if (stop != 0) {
            return stop;
        }
    }
    for (const raw_snapshot *snapshot = ticker->discarded; snapshot != NULL; snapshot = snapshot->next) {
        int stop = snapshot_traverse(snapshot, visit, arg);
        if (stop != 0) {
            return stop;
        }
    }
    int stop = collections_traverse(ticker, visit, arg);
    if (stop != 0) {
        return stop;
    }
    for (size_t i = 0; i < ticker->frame_cache_size; i++) {
        if (ticker->frame_cache[i].frame != NULL) {
            Py_VISIT(ticker->frame_cache[i].code);
            Py_VISIT(ticker->frame_cache[i].module);
            Py_VISIT(ticker->frame_cache[i].frame);
        }
    }
    return 0;
}
