/* C code that forks and knows nothing of Python's hooks. Each child ends at once. */
#include <pthread.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

/* Of the Python that has loaded this. */
extern int PyGILState_Ensure(void);
extern void PyGILState_Release(int state);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Called with the GIL, which it keeps while it waits, as extensions do. */
void want_lock(void)
{
    pthread_mutex_lock(&lock);
    pthread_mutex_unlock(&lock);
}

/* Called without the GIL; 0, or the status of a child that did not end well. */
int fork_with_lock(void)
{
    int status = -1;
    pthread_mutex_lock(&lock);
    pid_t child = fork();
    if (child == 0) {
        _exit(0);
    }
    pthread_mutex_unlock(&lock);
    return waitpid(child, &status, 0) == child ? status : -1;
}

static void *fork_here(void *status)
{
    *(int *)status = fork_with_lock();
    return NULL;
}

/* The same on a thread that Python does not know. */
int fork_on_thread(void)
{
    pthread_t thread;
    int status = -1;
    return pthread_create(&thread, NULL, fork_here, &status) == 0 && pthread_join(thread, NULL) == 0 ? status : -1;
}

static void take_gil(void)
{
    PyGILState_Release(PyGILState_Ensure());
}

/* From now on each fork takes the GIL and gives it back before it happens. */
int handle_forks(void)
{
    return pthread_atfork(take_gil, NULL, NULL);
}
