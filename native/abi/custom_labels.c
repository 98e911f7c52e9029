/* The library that readers of the Custom Labels ABI v1 look for, and nothing else.
 *
 * The ABI is its file name, the names and sizes of the two objects, and the access to the second by a TLS
 * descriptor (docs/host-profilers/abi.md). Plain C. Readers inspect it from outside the process;
 * splunk_profiler._context fills it in.
 */
#include <stdint.h>

#define EXPORTED __attribute__((visibility("default")))

EXPORTED extern const uint32_t custom_labels_abi_version;
const uint32_t custom_labels_abi_version = 1;

EXPORTED _Thread_local void *custom_labels_current_set;

/* Return the address of the calling thread's pointer. Without such code the linker would omit the TLS
 * descriptor. */
EXPORTED void **splunk_profiler_labels_slot(void);

void **splunk_profiler_labels_slot(void)
{
    return &custom_labels_current_set;
}
