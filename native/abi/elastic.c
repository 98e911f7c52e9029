/* The library that readers of the Elastic universal-profiling integration look for, and nothing else.
 *
 * The ABI is its file name, the names and sizes of the two objects, and the access to the first by a TLS
 * descriptor (docs/host-profilers/abi.md). Plain C. Readers inspect it from outside the process;
 * splunk_profiler._context fills it in.
 */
#define EXPORTED __attribute__((visibility("default")))

EXPORTED _Thread_local void *elastic_apm_profiling_correlation_tls_v1;
EXPORTED void *elastic_apm_profiling_correlation_process_storage_v1;

/* Return the address of the calling thread's pointer. Without such code the linker would omit the TLS
 * descriptor. */
EXPORTED void **splunk_profiler_elastic_slot(void);

void **splunk_profiler_elastic_slot(void)
{
    return &elastic_apm_profiling_correlation_tls_v1;
}
