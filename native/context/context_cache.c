/* A table of what contexts show, keyed by their variables.
 *
 * CPython keeps the variables of a context in an immutable mapping. Every ContextVar.set replaces the
 * mapping, and copies of a context share it. So a result found through a mapping holds for as long as the
 * mapping exists, even if its contexts change.
 *
 * An entry owns a weak reference to its mapping. A mapping whose first weak reference is that object is the
 * entry's own. Two objects that exist at the same time have different addresses. The mapping's address alone
 * proves nothing, since its memory may be reused. The publisher offers only results that cannot change behind
 * such a mapping (`is_cacheable`).
 *
 * Most mappings are met once: attaching and detaching a context makes two. So an entry is made when a mapping
 * is met for the second time. An entry whose mapping still exists is replaced only by every eighth candidate.
 * So contexts that exceed the table do not keep replacing each other. Entries of dead mappings stay until
 * their place is needed. A full table has about 200 kB.
 */
#include "py_compat.h"

#include "publisher.h"

#include <string.h>

#define BUCKET_BITS        9
#define BUCKETS            (1 << BUCKET_BITS)
#define ENTRIES_PER_BUCKET 2 /* places for one mapping */

#define SEEN_FILTER_BITS 11
#define SEEN_FILTER_SIZE (1 << SEEN_FILTER_BITS)

/* The span's bytes are copied: the spans of many tasks alternate, so each cache line counts. */
typedef struct __attribute__((aligned(64))) {
    PyObject *weakref;  /* owned: to the mapping; NULL: the place is free */
    UserLabels *labels; /* owned; NULL: none */
    encoded_span span;  /* serial 0: none */
} entry;

_Static_assert(sizeof(entry) == 128, "two cache lines");

/* The last two of the many mappings that share this place: their addresses, mixed with what they showed. An
 * address may belong to another mapping by now. That one mostly shows something else; if not, an entry is
 * made early. */
typedef struct {
    uint64_t newest, previous;
} seen_pair;

static struct {
    bool empty_shows_nothing;  /* contexts without any variable show nothing */
    unsigned replace_attempts; /* attempts to replace a live entry */
    entry buckets[BUCKETS][ENTRIES_PER_BUCKET];
    seen_pair seen_filter[SEEN_FILTER_SIZE];
} cache; /* GIL */

static uint64_t mix_bits(uint64_t number)
{
    return number * UINT64_C(0x9E3779B97F4A7C15);
}

static entry *bucket_of(const compat_variables *variables)
{
    return cache.buckets[mix_bits((uintptr_t)variables) >> (64 - BUCKET_BITS)];
}

HOT bool context_cache_find(PyObject *context, cached_context *cached)
{
    const compat_variables *variables = context == NULL ? NULL : compat_variables_of(context);
    *cached = (cached_context){NULL, NULL};
    if (variables == NULL || variables->h_count == 0) {
        return cache.empty_shows_nothing;
    }
    const PyObject *weakref = variables->h_weakreflist; /* one without a callback is always first */
    if (weakref == NULL) {
        return false;
    }
    entry *candidates = bucket_of(variables);
    for (entry *slot = candidates; slot < candidates + ENTRIES_PER_BUCKET; slot++) {
        if (slot->weakref == weakref) {
            cached->span = slot->span.serial == 0 ? NULL : &slot->span;
            cached->labels = slot->labels == NULL ? NULL : &slot->labels->bytes;
            return true;
        }
    }
    return false;
}

/* Runs no Python code: releases a weak reference without a callback, and an object of our type. */
static void entry_clear(entry *slot)
{
    Py_CLEAR(slot->weakref);
    Py_CLEAR(slot->labels);
}

/* Return a place for a new entry, or NULL. */
static entry *choose_slot(entry *candidates)
{
    for (entry *slot = candidates; slot < candidates + ENTRIES_PER_BUCKET; slot++) {
        if (slot->weakref == NULL || compat_is_weakref_dead(slot->weakref)) {
            return slot;
        }
    }
    unsigned attempt = ++cache.replace_attempts;
    return attempt % 8 == 0 ? &candidates[attempt / 8 % ENTRIES_PER_BUCKET] : NULL;
}

static bool is_seen_again(const compat_variables *variables, const Identity *identity, const UserLabels *labels)
{
    seen_pair *seen = &cache.seen_filter[mix_bits((uintptr_t)variables) >> (64 - SEEN_FILTER_BITS)];
    uint64_t span_serial = identity == NULL ? 0 : identity->bytes.serial;
    uint64_t labels_serial = labels == NULL ? 0 : labels->bytes.serial;
    uint64_t fingerprint = (uintptr_t)variables ^ mix_bits(span_serial) ^ mix_bits(mix_bits(labels_serial));
    if (seen->newest == fingerprint || seen->previous == fingerprint) {
        return true;
    }
    *seen = (seen_pair){fingerprint, seen->newest};
    return false;
}

void context_cache_offer(PyObject *mapping, Identity *identity, UserLabels *labels)
{
    const compat_variables *variables = (compat_variables *)mapping;
    if (variables == NULL || variables->h_count == 0) {
        cache.empty_shows_nothing = identity == NULL && labels == NULL;
        return;
    }
    if (!is_seen_again(variables, identity, labels)) {
        return;
    }
    entry *slot = choose_slot(bucket_of(variables));
    PyObject *weakref = slot == NULL ? NULL : compat_new_weakref(mapping);
    if (weakref != NULL) {
        entry_clear(slot);
        slot->span = identity == NULL ? (encoded_span){.serial = 0} : identity->bytes;
        slot->labels = (UserLabels *)Py_XNewRef((PyObject *)labels);
        slot->weakref = weakref;
    }
}

void context_cache_clear(void)
{
    cache.empty_shows_nothing = false;
    memset(cache.seen_filter, 0, sizeof(cache.seen_filter));
    for (size_t i = 0; i < BUCKETS; i++) {
        for (size_t k = 0; k < ENTRIES_PER_BUCKET; k++) {
            entry_clear(&cache.buckets[i][k]);
        }
    }
}
