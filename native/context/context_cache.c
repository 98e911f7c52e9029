/* A table of what contexts show, by their variables.
 *
 * CPython keeps the variables of a context in an immutable mapping, which every ContextVar.set replaces by a new one and
 * which copies of a context share. So what is found through such a mapping holds for as long as it exists, whatever becomes
 * of the contexts that had it. That it still exists is told by a weak reference, which an entry owns: a mapping whose first
 * weak reference is that very object is the one that the entry was made for, since of two objects that exist at the same
 * time no two have the same address. An address alone would not tell: the memory of a mapping that is gone is used again.
 *
 * The publisher hands in only what cannot change behind such a mapping either (its function `remember`).
 *
 * Most mappings are met once: whoever attaches and detaches contexts makes two at each turn. So an entry is made when a
 * mapping is met for the second time; and one whose mapping still exists is replaced only by every eighth that would like
 * to, so that more contexts than there is room for do not drive each other out in turns. Entries of mappings that are gone
 * stay until their place is needed; with the table full that is some 200 kB.
 */
#include "context_cache.h"

#include "context_compat.h"

#include <stdlib.h>
#include <string.h>

#define BUCKET_BITS        9
#define BUCKETS            (1 << BUCKET_BITS)
#define ENTRIES_PER_BUCKET 2 /* where a mapping may be */

#define SEEN_FILTER_BITS 11
#define SEEN_FILTER_SIZE (1 << SEEN_FILTER_BITS)

/* The span's bytes are copied: those of many tasks are used in turns, so each cache line that is needed counts. */
typedef struct __attribute__((aligned(64))) {
    PyObject *weakref;  /* owned: to the mapping; NULL: the place is free */
    UserLabels *labels; /* owned; NULL: none */
    encoded_span span;  /* its serial 0: none */
} entry;

_Static_assert(sizeof(entry) == 128, "two cache lines");

typedef struct {
    entry entries[ENTRIES_PER_BUCKET];
} bucket;

/* The last two mappings that were met, of many that would stand here: their addresses, mixed with what they showed. An
 * address may be of another mapping by now; that mostly shows something else, and if not, an entry is made early. */
typedef struct {
    uint64_t newest, previous;
} seen_pair;

static struct {
    bool empty_shows_nothing;  /* contexts without any variable show nothing */
    unsigned replace_attempts; /* for places that were taken */
    bucket buckets[BUCKETS];
    seen_pair seen_filter[SEEN_FILTER_SIZE];
} cache; /* GIL */

static uint64_t mix_bits(uint64_t number)
{
    return number * UINT64_C(0x9E3779B97F4A7C15);
}

static bucket *bucket_of(const compat_variables *variables)
{
    return &cache.buckets[mix_bits((uintptr_t)variables) >> (64 - BUCKET_BITS)];
}

HOT bool context_cache_find(PyObject *context, cached_context *cached)
{
    const compat_variables *variables = context == NULL ? NULL : compat_variables_of(context);
    *cached = (cached_context){NULL, NULL};
    if (variables == NULL || compat_variables_size(variables) == 0) {
        return cache.empty_shows_nothing;
    }
    const PyObject *weakref = compat_first_weakref(variables);
    if (weakref == NULL) {
        return false;
    }
    bucket *candidates = bucket_of(variables);
    for (int i = 0; i < ENTRIES_PER_BUCKET; i++) {
        entry *slot = &candidates->entries[i];
        if (slot->weakref == weakref) {
            cached->span = slot->span.serial == 0 ? NULL : &slot->span;
            cached->labels = slot->labels == NULL ? NULL : &slot->labels->bytes;
            return true;
        }
    }
    return false;
}

/* Releasing these runs no Python code: a weak reference without a callback, and a type of ours. */
static void entry_clear(entry *slot)
{
    Py_CLEAR(slot->weakref);
    Py_CLEAR(slot->labels);
}

/* Where an entry may be made, or NULL. */
static entry *choose_slot(bucket *candidates)
{
    for (int i = 0; i < ENTRIES_PER_BUCKET; i++) {
        entry *slot = &candidates->entries[i];
        if (slot->weakref == NULL || compat_is_weakref_dead(slot->weakref)) {
            return slot;
        }
    }
    unsigned attempt = ++cache.replace_attempts;
    return attempt % 8 == 0 ? &candidates->entries[attempt / 8 % ENTRIES_PER_BUCKET] : NULL;
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

void context_cache_offer(compat_variables *variables, Identity *identity, UserLabels *labels)
{
    if (variables == NULL || compat_variables_size(variables) == 0) {
        cache.empty_shows_nothing = identity == NULL && labels == NULL;
        return;
    }
    if (!is_seen_again(variables, identity, labels)) {
        return;
    }
    entry *slot = choose_slot(bucket_of(variables));
    PyObject *weakref = slot == NULL ? NULL : compat_new_weakref((PyObject *)variables);
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
        for (int j = 0; j < ENTRIES_PER_BUCKET; j++) {
            entry_clear(&cache.buckets[i].entries[j]);
        }
    }
}
