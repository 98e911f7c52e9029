/*
 * A library that publishes for host profilers, as its macros say: the right way, or one of the wrong ways that the
 * inspector has to recognise. Written from the specifications; shares nothing with native/.
 *
 *   ELASTIC, LABELS   which interfaces
 *   VISIBILITY        "default" or "hidden", for the published symbols
 *   VERSION           custom_labels_abi_version
 *   POINTERS          how many words the Elastic thread-local variable has
 *   PADDING           more thread-local bytes: too many for the room that is left for libraries loaded late
 */

#include <stdint.h>

#ifndef VISIBILITY
#define VISIBILITY "default"
#endif
#ifndef VERSION
#define VERSION 1
#endif
#ifndef POINTERS
#define POINTERS 1
#endif
#define PUBLISHED __attribute__((visibility(VISIBILITY), used))
#define REACHED   __attribute__((visibility("default"), used))

#ifdef PADDING
REACHED __thread char inspected_padding[PADDING];

REACHED char *inspected_use_padding(void)
{
    return inspected_padding;
}
#endif

#ifdef ELASTIC
PUBLISHED __thread void *elastic_apm_profiling_correlation_tls_v1[POINTERS];
PUBLISHED void *elastic_apm_profiling_correlation_process_storage_v1;

REACHED void **inspected_record(void)
{
    return elastic_apm_profiling_correlation_tls_v1;
}

REACHED void **inspected_storage(void)
{
    return &elastic_apm_profiling_correlation_process_storage_v1;
}
#endif

#ifdef LABELS
PUBLISHED const uint32_t custom_labels_abi_version = VERSION;
PUBLISHED __thread void *custom_labels_current_set;

REACHED void **inspected_labels(void)
{
    return &custom_labels_current_set;
}
#endif
