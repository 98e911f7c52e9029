/* Sees the ends of blocks without a hook of each free (raw_frees.h).
 *
 * CPython takes small blocks from its pools, and gives what is in none of them to the raw allocator when it is freed. So a
 * block that may be sampled is made larger than those of pools, and only the raw allocator's free is hooked, of which there
 * are few. Where that is not possible, each free is (allocator_hooks.c).
 */
#include "py_compat.h"

#include "raw_frees.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define ALLOCATOR_COUNT (PYMEM_DOMAIN_OBJ + 1)

/* The hook has no context of its own, because a thread without a GIL may be between reading it and the function. */
static struct {
    void (*_Atomic next)(void *context, void *memory); /* CPython's own; NULL: it was never hooked */
    atomic_bool sees_ends;
    _Atomic(void *) probed_block;
    atomic_bool was_probed_freed;
    PyMemAllocatorEx refused[ALLOCATOR_COUNT]; /* it shows no ends with these. GIL */
} raw_free;

bool raw_frees_see_ends(void)
{
    return atomic_load_explicit(&raw_free.sees_ends, memory_order_relaxed);
}

bool allocator_ignores_context(const PyMemAllocatorEx *allocator, const void *function)
{
    Dl_info cpython, found;
    return allocator->ctx == NULL && dladdr((void *)PyMem_GetAllocator, &cpython) != 0 && dladdr(function, &found) != 0
           && found.dli_fbase == cpython.dli_fbase;
}

static void hook_free(void *context, void *memory)
{
    if (__builtin_expect(live_heap_may_have(memory), 0)) {
        allocations_end_block(memory);
    }
    if (memory != NULL && memory == atomic_load_explicit(&raw_free.probed_block, memory_order_relaxed)) {
        atomic_store(&raw_free.was_probed_freed, true);
    }
    void (*next)(void *, void *) = atomic_load_explicit(&raw_free.next, memory_order_relaxed);
    if (next != NULL) {
        next(context, memory);
    }
    else {
        free(memory); /* as CPython's does: this thread sees the hook before what it is to call */
    }
}

/* Return true if this very block comes to the hook when it is freed: a library between them may change its address. */
static bool sees_end_of(PyMemAllocatorDomain domain)
{
    bool is_object = domain == PYMEM_DOMAIN_OBJ;
    void *block = is_object ? PyObject_Malloc(MAX_POOLED_BYTES + 1) : PyMem_Malloc(MAX_POOLED_BYTES + 1);
    atomic_store(&raw_free.probed_block, block);
    atomic_store(&raw_free.was_probed_freed, false);
    if (is_object) {
        PyObject_Free(block);
    }
    else {
        PyMem_Free(block);
    }
    atomic_store(&raw_free.probed_block, NULL);
    return block != NULL && atomic_load(&raw_free.was_probed_freed);
}

/* Return true if ends of all blocks come to the hook that are no blocks of a pool; another library may be above it. */
static bool sees_frees(void)
{
    int64_t left_before = thread_distance.left;
    bool sees_all = atomic_load(&raw_free.next) != NULL;
    thread_distance.left = INT64_MAX / 2; /* no distance ends meanwhile */
    sees_all = sees_all && sees_end_of(PYMEM_DOMAIN_OBJ) && (!COMPAT_HAS_OWN_GILS || sees_end_of(PYMEM_DOMAIN_MEM));
    thread_distance.left = left_before;
    return sees_all;
}

/* All that CPython has, as a change of any may change what the hook sees. */
static void get_allocators(PyMemAllocatorEx found[ALLOCATOR_COUNT])
{
    for (int domain = 0; domain < ALLOCATOR_COUNT; domain++) {
        PyMem_GetAllocator((PyMemAllocatorDomain)domain, &found[domain]);
    }
}

static void set_free(void (*function)(void *context, void *memory))
{
    PyMemAllocatorEx changed;
    PyMem_GetAllocator(PYMEM_DOMAIN_RAW, &changed);
    changed.free = function; /* the only change: other threads may read meanwhile, without a GIL */
    PyMem_SetAllocator(PYMEM_DOMAIN_RAW, &changed);
}

/* Return false where it shows no ends of blocks; then nothing is hooked. */
static bool try_hook(const PyMemAllocatorEx *allocator)
{
    bool is_known = allocator->ctx == NULL && allocator->free == atomic_load(&raw_free.next);
    if (!is_known && !allocator_ignores_context(allocator, (void *)allocator->free)) {
        return false;
    }
    atomic_store(&raw_free.next, allocator->free);
    set_free(hook_free);
    if (!sees_frees()) {
        raw_frees_remove();
        return false;
    }
    return true;
}

hooks_state raw_frees_install(void)
{
    PyMemAllocatorEx found[ALLOCATOR_COUNT];
    if (sees_frees()) {
        return atomic_exchange(&raw_free.sees_ends, true) ? HOOKS_STAYED : HOOKS_ADDED;
    }
    raw_frees_remove();
    get_allocators(found);
    /* Not with each drain: a try takes the linker's lock, which another thread may have for long. */
    if (memcmp(found, raw_free.refused, sizeof(found)) == 0) {
        return HOOKS_REFUSED;
    }
    if (!try_hook(&found[PYMEM_DOMAIN_RAW])) {
        memcpy(raw_free.refused, found, sizeof(found));
        return HOOKS_REFUSED;
    }
    atomic_store(&raw_free.sees_ends, true);
    return HOOKS_ADDED;
}

void raw_frees_remove(void)
{
    PyMemAllocatorEx found;
    PyMem_GetAllocator(PYMEM_DOMAIN_RAW, &found);
    if (found.free == hook_free) {
        set_free(atomic_load(&raw_free.next));
    }
    atomic_store(&raw_free.sees_ends, false);
}
