/* The library that readers of the Elastic universal-profiling integration look for, and nothing else.
 *
 * Its file name, the names and sizes of the two objects and the way the first is addressed (a TLS descriptor) are the ABI:
 * docs/abi.md. Plain C; it is looked at from outside the process, and filled in by splunk_profiler._context.
 */
#define EXPORTED __attribute__((visibility("default")))

EXPORTED _Thread_local void *elastic_apm_profiling_correlation_tls_v1;
EXPORTED void *elastic_apm_profiling_correlation_process_storage_v1;

/* Where the calling thread's pointer is. Without code that asks, the linker would leave the TLS descriptor out. */
EXPORTED void **splunk_profiler_elastic_slot(void);

void **splunk_profiler_elastic_slot(void)
{
    return &elastic_apm_profiling_correlation_tls_v1;
}
