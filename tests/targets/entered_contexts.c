/* C code that runs a function of C in a context. */
extern int PyContext_Enter(void *);
extern int PyContext_Exit(void *);

int call_in_context(void *context, int (*body)(void))
{
    if (PyContext_Enter(context) != 0) {
        return -1;
    }
    int result = body();
    return PyContext_Exit(context) == 0 ? result : -1;
}

#ifdef NO_PLT /* else this would make the linker give the calls a slot that is not bound lazily */
void *where_enter_is(void)
{
    return (void *)PyContext_Enter;
}
#endif
