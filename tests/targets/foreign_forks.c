/* C code that forks and knows nothing of Python's hooks. Each child ends at once, but that of fork_while_kept(). */
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
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

/* Called without the GIL; 0, or the status of a child that did not end well. It needs memory. */
int fork_with_lock(void)
{
    int status = -1;
    pthread_mutex_lock(&lock);
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        for (size_t size = 1; size < 2000; size += 100) {
            free(malloc(size));
        }
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

static sem_t ready, kept, forked;

/* Called before the two functions below. */
void prepare_to_keep(void)
{
    sem_init(&ready, 0, 0);
    sem_init(&kept, 0, 0);
    sem_init(&forked, 0, 0);
}

/* Called without the GIL; takes it, and keeps it until the other thread has forked. */
void keep_gil(void)
{
    sem_wait(&ready);
    int state = PyGILState_Ensure();
    sem_post(&kept);
    sem_wait(&forked);
    PyGILState_Release(state);
}

/* Called without the GIL, which another thread has kept for so long when this forks; 0 in the child. */
int fork_while_kept(int milliseconds)
{
    sem_post(&ready);
    sem_wait(&kept);
    poll(NULL, 0, milliseconds);
    pid_t child = fork();
    if (child != 0) {
        sem_post(&forked);
    }
    return child;
}
