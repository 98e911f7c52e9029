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
 * mapping is met for the second time, and one that is in use is not replaced. Entries of mappings that are gone stay until
 * their place is needed; with the table full that is some 300 kB.
 */
#include "known_contexts.h"

#include "context_compat.h"

#include <stdlib.h>
#include <string.h>

#define BUCKET_BITS 9
#define BUCKETS     (1 << BUCKET_BITS)
#define PLACES      2 /* where a mapping may be: one cache line holds them */

#define SIGHTING_BITS 11
#define SIGHTINGS     (1 << SIGHTING_BITS)

typedef struct {
    PyObject *reference;     /* owned: to the mapping; NULL: the place is free */
    published_context shows; /* owned */
} entry;

typedef struct {
    entry places[PLACES];
    bool in_use[PLACES]; /* asked for since it last had to defend its place */
} __attribute__((aligned(64))) bucket;

/* The last two mappings that were met, of many that would stand here: their addresses, mixed with what they showed. An
 * address may be of another mapping by now; that mostly shows something else, and if not, an entry is made early. */
typedef struct {
    uint64_t latest, before;
} sighting;

static struct {
    bool bare; /* contexts without any variable show nothing */
    bucket buckets[BUCKETS];
    sighting sightings[SIGHTINGS];
} known; /* GIL */

static const published_context nothing;

static uint64_t mixed(uint64_t number)
{
    return number * UINT64_C(0x9E3779B97F4A7C15);
}

static bucket *bucket_of(const compat_variables *variables)
{
    return &known.buckets[mixed((uintptr_t)variables) >> (64 - BUCKET_BITS)];
}

const published_context *known_context(PyObject *context)
{
    const compat_variables *variables = context == NULL ? NULL : compat_variables_of(context);
    if (variables == NULL || compat_count_variables(variables) == 0) {
        return known.bare ? &nothing : NULL;
    }
    const PyObject *reference = compat_first_reference(variables);
    if (reference == NULL) {
        return NULL;
    }
    bucket *found = bucket_of(variables);
    for (int i = 0; i < PLACES; i++) {
        if (found->places[i].reference == reference) {
            found->in_use[i] = true;
            return &found->places[i].shows;
        }
    }
    return NULL;
}

/* Releasing these runs no Python code: a weak reference without a callback, and two types of ours. */
static void give_up(entry *given_up)
{
    entry before = *given_up;
    *given_up = (entry){NULL, {NULL, NULL}};
    Py_XDECREF(before.reference);
    Py_XDECREF(before.shows.identity);
    Py_XDECREF(before.shows.labels);
}

/* Where an entry may be made: NULL if others need both places. */
static entry *free_place(bucket *of)
{
    entry *idle = NULL;
    for (int i = 0; i < PLACES; i++) {
        entry *place = &of->places[i];
        if (place->reference == NULL || compat_is_dead(place->reference)) {
            return place;
        }
        if (!of->in_use[i]) {
            idle = place;
        }
        of->in_use[i] = false;
    }
    return idle;
}

static bool is_met_again(const compat_variables *variables, const Identity *identity, const UserLabels *labels)
{
    sighting *seen = &known.sightings[mixed((uintptr_t)variables) >> (64 - SIGHTING_BITS)];
    uint64_t span_serial = identity == NULL ? 0 : identity->bytes.serial;
    uint64_t labels_serial = labels == NULL ? 0 : labels->bytes.serial;
    uint64_t now = (uintptr_t)variables ^ mixed(span_serial) ^ mixed(mixed(labels_serial));
    if (seen->latest == now || seen->before == now) {
        return true;
    }
    *seen = (sighting){now, seen->latest};
    return false;
}

void known_context_met(compat_variables *variables, Identity *identity, UserLabels *labels)
{
    if (variables == NULL || compat_count_variables(variables) == 0) {
        known.bare = identity == NULL && labels == NULL;
        return;
    }
    if (!is_met_again(variables, identity, labels)) {
        return;
    }
    entry *place = free_place(bucket_of(variables));
    PyObject *reference = place == NULL ? NULL : compat_reference_to((PyObject *)variables);
    if (reference != NULL) {
        give_up(place);
        place->shows.identity = (Identity *)Py_XNewRef((PyObject *)identity);
        place->shows.labels = (UserLabels *)Py_XNewRef((PyObject *)labels);
        place->reference = reference;
    }
}

void known_contexts_forget(void)
{
    known.bare = false;
    memset(known.sightings, 0, sizeof(known.sightings));
    for (size_t i = 0; i < BUCKETS; i++) {
        for (int j = 0; j < PLACES; j++) {
            give_up(&known.buckets[i].places[j]);
        }
    }
}
