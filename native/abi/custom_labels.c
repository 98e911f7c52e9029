/* The library that readers of the Custom Labels ABI v1 look for, and nothing else.
 *
 * Its file name, the names and sizes of the two objects and the way the second is addressed (a TLS descriptor) are the
 * ABI: docs/abi.md. Plain C; it is looked at from outside the process, and filled in by splunk_profiler._context.
 */
#include <stdint.h>

#define EXPORTED __attribute__((visibility("default")))

EXPORTED extern const uint32_t custom_labels_abi_version;
const uint32_t custom_labels_abi_version = 1;

EXPORTED _Thread_local void *custom_labels_current_set;

/* Where the calling thread's pointer is. Without code that asks, the linker would leave the TLS descriptor out. */
EXPORTED void **splunk_profiler_labels_slot(void);

void **splunk_profiler_labels_slot(void)
{
    return &custom_labels_current_set;
}
