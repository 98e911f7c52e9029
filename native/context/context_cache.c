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

#define BUCKET_BITS 9
#define BUCKETS     (1 << BUCKET_BITS)
#define PLACES      2 /* where a mapping may be */

#define SIGHTING_BITS 11
#define SIGHTINGS     (1 << SIGHTING_BITS)

/* The span's bytes are copied: those of many tasks are used in turns, so each cache line that is needed counts. */
typedef struct __attribute__((aligned(64))) {
    PyObject *reference; /* owned: to the mapping; NULL: the place is free */
    UserLabels *labels;  /* owned; NULL: none */
    span_bytes span;     /* its serial 0: none */
} entry;

_Static_assert(sizeof(entry) == 128, "two cache lines");

typedef struct {
    entry places[PLACES];
} bucket;

/* The last two mappings that were met, of many that would stand here: their addresses, mixed with what they showed. An
 * address may be of another mapping by now; that mostly shows something else, and if not, an entry is made early. */
typedef struct {
    uint64_t latest, before;
} sighting;

static struct {
    bool bare;         /* contexts without any variable show nothing */
    unsigned contests; /* for places that were taken */
    bucket buckets[BUCKETS];
    sighting sightings[SIGHTINGS];
} known; /* GIL */

static uint64_t mixed(uint64_t number)
{
    return number * UINT64_C(0x9E3779B97F4A7C15);
}

static bucket *bucket_of(const compat_variables *variables)
{
    return &known.buckets[mixed((uintptr_t)variables) >> (64 - BUCKET_BITS)];
}

HOT bool known_context(PyObject *context, known_contents *shows)
{
    const compat_variables *variables = context == NULL ? NULL : compat_variables_of(context);
    *shows = (known_contents){NULL, NULL};
    if (variables == NULL || compat_count_variables(variables) == 0) {
        return known.bare;
    }
    const PyObject *reference = compat_first_reference(variables);
    if (reference == NULL) {
        return false;
    }
    bucket *of = bucket_of(variables);
    for (int i = 0; i < PLACES; i++) {
        entry *place = &of->places[i];
        if (place->reference == reference) {
            shows->span = place->span.serial == 0 ? NULL : &place->span;
            shows->labels = place->labels == NULL ? NULL : &place->labels->bytes;
            return true;
        }
    }
    return false;
}

/* Releasing these runs no Python code: a weak reference without a callback, and a type of ours. */
static void give_up(entry *place)
{
    Py_CLEAR(place->reference);
    Py_CLEAR(place->labels);
}

/* Where an entry may be made, or NULL. */
static entry *place_in(bucket *of)
{
    for (int i = 0; i < PLACES; i++) {
        entry *place = &of->places[i];
        if (place->reference == NULL || compat_is_dead(place->reference)) {
            return place;
        }
    }
    unsigned contest = ++known.contests;
    return contest % 8 == 0 ? &of->places[contest / 8 % PLACES] : NULL;
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
    entry *place = place_in(bucket_of(variables));
    PyObject *reference = place == NULL ? NULL : compat_reference_to((PyObject *)variables);
    if (reference != NULL) {
        give_up(place);
        place->span = identity == NULL ? (span_bytes){.serial = 0} : identity->bytes;
        place->labels = (UserLabels *)Py_XNewRef((PyObject *)labels);
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
