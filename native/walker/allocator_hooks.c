/* Hooks of CPython's allocators: they count the bytes of each thread down to its next sample.
 *
 * Allocators belong to the process, and so do the hooks. Another library may hook above ours, and then they stay
 * below it until the process ends. So their state is static, and without a ticker they only pass calls on.
 *
 * The domains whose allocations are hooked need the GIL, which may be that of another interpreter; some extensions do not
 * keep to it.
 */
#include "py_compat.h"

#include "allocations.h"
#include "raw_frees.h"

#include <string.h>

#define RARE      __attribute__((noinline))
#define MAX_HOOKS 8 /* for each domain, in the life of the process */

/* GIL to write, and all but `counted` before the hook is set; whoever calls the hook reads it. */
typedef struct {
    PyMemAllocatorEx next;
    PyMemAllocatorEx calls; /* call `next`, with the hook as context */
    size_t counted;         /* all bits if the hook counts, else 0 */
    bool sees_frees;
} allocator_hook;

/* One of the hooks counts. Others may be below those of other libraries, or saved by these, and pass calls on. So a used
 * hook never calls another allocator than at first: that could make a circle. */
typedef struct {
    PyMemAllocatorDomain id;
    allocator_hook *counting; /* NULL: none */
    size_t used_count;
    allocator_hook hooks[MAX_HOOKS];
} hooked_domain;

/* Before 3.12 a thread that allocates there without the GIL could not be told from its holder, and some extensions do
 * so in the domain of PyMem_Malloc. */
static hooked_domain domains[] = {
    {.id = PYMEM_DOMAIN_OBJ},
#if COMPAT_HAS_OWN_GILS
    {.id = PYMEM_DOMAIN_MEM},
#endif
};
enum { DOMAIN_COUNT = sizeof(domains) / sizeof(domains[0]) };

static _Thread_local bool is_probed, was_called; /* by is_called */

static void *next_malloc(void *hook, size_t size)
{
    const PyMemAllocatorEx *next = &((allocator_hook *)hook)->next;
    return next->malloc(next->ctx, size);
}

static void *next_calloc(void *hook, size_t count, size_t size)
{
    const PyMemAllocatorEx *next = &((allocator_hook *)hook)->next;
    return next->calloc(next->ctx, count, size);
}

static void *next_realloc(void *hook, void *memory, size_t size)
{
    const PyMemAllocatorEx *next = &((allocator_hook *)hook)->next;
    return next->realloc(next->ctx, memory, size);
}

static void next_free(void *hook, void *memory)
{
    const PyMemAllocatorEx *next = &((allocator_hook *)hook)->next;
    next->free(next->ctx, memory);
}

/* Return the functions that call an allocator from its hook: as they are, if they ignore the hook as their context. */
static PyMemAllocatorEx calls_to(const PyMemAllocatorEx *next)
{
    return allocator_ignores_context(next, (void *)next->malloc)
               ? *next
               : (PyMemAllocatorEx){NULL, next_malloc, next_calloc, next_realloc, next_free};
}

/* Return the size with which a block of `size` bytes is allocated that may be sampled. */
static size_t size_at_end(const allocator_hook *hook, size_t size)
{
    bool is_enlarged = hook->counted != 0 && size <= MAX_POOLED_BYTES && raw_frees_see_ends();
    return is_enlarged ? MAX_POOLED_BYTES + 1 : size;
}

/* Takes the sample of an allocation that ends a distance; NULL: it has failed. The hook that counts does it: others may be
 * above and below it. */
static RARE void *count_to_end(const allocator_hook *hook, void *memory, size_t size)
{
    if (hook->counted == 0) {
        return memory;
    }
    if (is_probed) {
        was_called = true;
    }
    else {
        allocations_take_sample(memory, size);
    }
    return memory;
}

/* Counts before the allocation, so that the call of the next allocator is the last of a hook. `< 0` needs no compare: the
 * subtraction sets the flag. */
static inline bool count_allocation(const allocator_hook *hook, size_t size)
{
    return __builtin_expect((thread_distance.left -= (int64_t)(size & hook->counted)) < 0, 0);
}

/* What is rare is in functions of its own: then the others need no stack. */
static RARE void *malloc_at_end(allocator_hook *hook, size_t size)
{
    return count_to_end(hook, hook->calls.malloc(hook, size_at_end(hook, size)), size);
}

static RARE void *calloc_at_end(allocator_hook *hook, size_t count, size_t size)
{
    size_t whole = count * size; /* CPython has checked that it is right */
    size_t enlarged = size_at_end(hook, whole);
    void *memory = enlarged == whole ? hook->calls.calloc(hook, count, size) : hook->calls.calloc(hook, 1, enlarged);
    return count_to_end(hook, memory, whole);
}

static RARE void free_live(allocator_hook *hook, void *memory)
{
    allocations_end_block(memory);
    hook->calls.free(hook, memory);
}

static void *hook_malloc(void *context, size_t size)
{
    allocator_hook *hook = context;
    return count_allocation(hook, size) ? malloc_at_end(hook, size) : hook->calls.malloc(hook, size);
}

static void *hook_calloc(void *context, size_t count, size_t size)
{
    allocator_hook *hook = context;
    return count_allocation(hook, count * size) ? calloc_at_end(hook, count, size)
                                                : hook->calls.calloc(hook, count, size);
}

/* The end of a block and the allocation of another one, even where it stays in its place: the size before is known
 * only for sampled blocks, and each size that a block gets must have its chance to be sampled. */
static RARE void *realloc_at_end(allocator_hook *hook, void *memory, size_t size, bool is_sampled)
{
    bool may_be_live = live_heap_may_have(memory);
    void *resized = hook->calls.realloc(hook, memory, is_sampled ? size_at_end(hook, size) : size);
    if (resized != NULL && may_be_live) {
        allocations_end_block(memory);
    }
    return is_sampled ? count_to_end(hook, resized, size) : resized;
}

static void *hook_realloc(void *context, void *memory, size_t size)
{
    allocator_hook *hook = context;
    bool is_sampled = count_allocation(hook, size);
    return is_sampled || live_heap_may_have(memory) ? realloc_at_end(hook, memory, size, is_sampled)
                                                    : hook->calls.realloc(hook, memory, size);
}

static void hook_free(void *context, void *memory)
{
    allocator_hook *hook = context;
    if (__builtin_expect(live_heap_may_have(memory), 0)) {
        free_live(hook, memory);
    }
    else {
        hook->calls.free(hook, memory);
    }
}

/* Return our hook that is called first, or NULL. */
static allocator_hook *find_top(hooked_domain *domain)
{
    PyMemAllocatorEx found;
    PyMem_GetAllocator(domain->id, &found);
    for (size_t i = 0; i < domain->used_count; i++) {
        if (found.ctx == &domain->hooks[i]) {
            return &domain->hooks[i];
        }
    }
    return NULL;
}

static void set_counting(hooked_domain *domain, allocator_hook *hook)
{
    if (domain->counting != NULL) {
        domain->counting->counted = 0;
    }
    domain->counting = hook;
    if (hook != NULL) {
        hook->counted = SIZE_MAX;
    }
}

/* Other libraries save and restore allocators, and so remove hooks or bring them back. So try if the hook is called. */
static bool is_called(hooked_domain *domain)
{
    allocator_hook *top = find_top(domain);
    if (top != NULL) {
        set_counting(domain, top);
    }
    if (top != NULL || domain->counting == NULL) {
        return top != NULL;
    }
    int64_t left_before = thread_distance.left;
    was_called = false;
    is_probed = true;
    thread_distance.left = 0;
    if (domain->id == PYMEM_DOMAIN_OBJ) {
        PyObject_Free(PyObject_Malloc(1));
    }
    else {
        PyMem_Free(PyMem_Malloc(1));
    }
    is_probed = false;
    thread_distance.left = left_before;
    return was_called;
}

/* A thread with another GIL could see one half of a change. */
static bool can_change(void)
{
    return !COMPAT_HAS_OWN_GILS || compat_is_only_interpreter(PyInterpreterState_Main());
}

/* Return a hook that calls an allocator, a used one if there is such a one; NULL: no room. */
static allocator_hook *find_hook(hooked_domain *domain, const PyMemAllocatorEx *next, bool needs_frees)
{
    for (size_t i = 0; i < domain->used_count; i++) {
        allocator_hook *used = &domain->hooks[i];
        if (memcmp(&used->next, next, sizeof(*next)) == 0 && used->sees_frees == needs_frees) {
            return used;
        }
    }
    if (domain->used_count == MAX_HOOKS) {
        return NULL;
    }
    allocator_hook *unused = &domain->hooks[domain->used_count++];
    *unused = (allocator_hook){.next = *next, .calls = calls_to(next), .sees_frees = needs_frees};
    return unused;
}

/* Return false if there is no room. */
static bool add_hook(hooked_domain *domain, bool needs_frees)
{
    PyMemAllocatorEx next;
    PyMem_GetAllocator(domain->id, &next);
    allocator_hook *hook = find_hook(domain, &next, needs_frees);
    if (hook == NULL) {
        return false;
    }
    set_counting(domain, hook);
    PyMemAllocatorEx added = {hook, hook_malloc, hook_calloc, hook_realloc, needs_frees ? hook_free : hook->calls.free};
    PyMem_SetAllocator(domain->id, &added);
    return true;
}

hooks_state allocator_hooks_install(bool needs_frees)
{
    hooks_state raw = needs_frees ? raw_frees_install() : HOOKS_REFUSED;
    hooks_state state = raw == HOOKS_ADDED ? HOOKS_ADDED : HOOKS_STAYED;
    needs_frees = needs_frees && raw == HOOKS_REFUSED;
    for (size_t i = 0; i < DOMAIN_COUNT; i++) {
        if (is_called(&domains[i]) && (domains[i].counting->sees_frees || !needs_frees)) {
            continue;
        }
        if (!can_change() || !add_hook(&domains[i], needs_frees)) {
            return HOOKS_REFUSED;
        }
        state = HOOKS_ADDED;
    }
    return state;
}

void allocator_hooks_remove(void)
{
    raw_frees_remove();
    for (size_t i = 0; i < DOMAIN_COUNT && can_change(); i++) {
        hooked_domain *domain = &domains[i];
        for (allocator_hook *top; (top = find_top(domain)) != NULL;) {
            PyMem_SetAllocator(domain->id, &top->next);
            set_counting(domain, NULL);
        }
    }
}
