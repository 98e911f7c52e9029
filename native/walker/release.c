/* Gives up the references that captures took. Runs on the worker thread (in drain) or where a Ticker ends.
 *
 * A finaliser may run at every DECREF here, so each thing is taken out of the core's lists first and the lists are
 * read again afterwards.
 */
#include "state.h"

#include <stdlib.h>

static void stack_free(core *c, raw_stack *stack)
{
    if (stack->previous != NULL) {
        stack->previous->next = stack->next;
    }
    else {
        c->stacks = stack->next;
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

void thread_release(core *c, raw_thread *thread)
{
    stack_release(c, thread->stack);
    Py_XDECREF(thread->context);
    Py_XDECREF(thread->labels);
    Py_XDECREF(thread->object);
}

void snapshot_free(core *c, raw_snapshot *snapshot)
{
    for (size_t i = 0; i < snapshot->count; i++) {
        thread_release(c, &snapshot->threads[i]);
    }
    free(snapshot);
}

void core_release_dead(core *c)
{
    while (c->overwritten != NULL) {
        raw_snapshot *snapshot = c->overwritten;
        c->overwritten = snapshot->next;
        c->overwritten_count--;
        snapshot_free(c, snapshot);
    }
    while (c->dead_stacks != NULL) {
        raw_stack *stack = c->dead_stacks;
        c->dead_stacks = stack->next_dead;
        stack_free(c, stack);
    }
}

void core_release_all(core *c)
{
    while (atomic_load(&c->ready) > 0) {
        raw_snapshot *snapshot = c->ring[c->ring_first];
        c->ring_first = (c->ring_first + 1) % c->ring_size;
        atomic_fetch_sub(&c->ready, 1);
        snapshot_free(c, snapshot);
    }
    raw_collection collection;
    while (collections_take(c, &collection)) {
        thread_release(c, &collection.thread);
    }
    size_t count = c->last_count;
    c->last_count = 0;
    for (size_t i = 0; i < count; i++) {
        stack_release(c, c->last[i].stack);
    }
    core_release_dead(c);
    known_frames_clear(c);
    Py_CLEAR(c->context_var);
    Py_CLEAR(c->labels_var);
    Py_CLEAR(c->threads);
    Py_CLEAR(c->make_frame);
    Py_CLEAR(c->make_stack);
    Py_CLEAR(c->name_key);
    Py_CLEAR(c->native_id_key);
    Py_CLEAR(c->traces);
    Py_CLEAR(c->span_key);
    Py_CLEAR(c->context_name);
    Py_CLEAR(c->generation_key);
}

static int snapshot_traverse(const raw_snapshot *snapshot, visitproc visit, void *arg)
{
    for (size_t i = 0; i < snapshot->count; i++) {
        Py_VISIT(snapshot->threads[i].context);
        Py_VISIT(snapshot->threads[i].labels);
        Py_VISIT(snapshot->threads[i].object);
    }
    return 0;
}

/* What a drain under way has taken out of the core is not visited: to the collector it is held from outside. */
int core_traverse(core *c, visitproc visit, void *arg)
{
    Py_VISIT(c->context_var);
    Py_VISIT(c->labels_var);
    Py_VISIT(c->threads);
    Py_VISIT(c->make_frame);
    Py_VISIT(c->make_stack);
    Py_VISIT(c->traces);
    for (const raw_stack *stack = c->stacks; stack != NULL; stack = stack->next) {
        Py_VISIT(stack->stack);
        for (size_t i = 0; i < stack->depth; i++) {
            Py_VISIT(stack->frames[i].code);
            Py_VISIT(stack->frames[i].globals);
        }
    }
    for (size_t i = 0, ready = atomic_load(&c->ready); i < ready; i++) {
        int stop = snapshot_traverse(c->ring[(c->ring_first + i) % c->ring_size], visit, arg);
        if (stop != 0) {
            return stop;
        }
    }
    for (const raw_snapshot *snapshot = c->overwritten; snapshot != NULL; snapshot = snapshot->next) {
        int stop = snapshot_traverse(snapshot, visit, arg);
        if (stop != 0) {
            return stop;
        }
    }
    int stop = collections_traverse(c, visit, arg);
    if (stop != 0) {
        return stop;
    }
    for (size_t i = 0; i < c->known_size; i++) {
        if (c->known[i].frame != NULL) {
            Py_VISIT(c->known[i].code);
            Py_VISIT(c->known[i].module);
            Py_VISIT(c->known[i].frame);
        }
    }
    return 0;
}
