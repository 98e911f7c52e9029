/* Takes BYTES bytes of the room that the dynamic loader keeps for the static thread-local memory of libraries that come late.
 * Loaded under several names until there is no room left. */
static _Thread_local char filler[BYTES] __attribute__((tls_model("initial-exec"), aligned(8))) = {1};

char *fill(void);

char *fill(void)
{
    return filler;
}
