/* C code that forks and knows nothing of Python's hooks. Each child ends at once, but that of fork_while_kept(). */
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
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

/* Call a function on a thread that Python does not know; return the status that it sets. */
static int run_on_thread(void *(*run)(void *))
{
    pthread_t thread;
    int status = -1;
    return pthread_create(&thread, NULL, run, &status) == 0 && pthread_join(thread, NULL) == 0 ? status : -1;
}

/* The same on a thread that Python does not know. */
int fork_on_thread(void)
{
    return run_on_thread(fork_here);
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

enum { STEPS = 15000000 };

static sem_t ready, kept, released;
static atomic_bool is_changing;

/* Called before the functions below. */
void prepare_to_keep(void)
{
    sem_init(&ready, 0, 0);
    sem_init(&kept, 0, 0);
    sem_init(&released, 0, 0);
}

/* Called without the GIL; takes it, keeps it until the other thread allows its release, and works a little before. */
void keep_gil(void)
{
    sem_wait(&ready);
    int state = PyGILState_Ensure();
    is_changing = true;
    sem_post(&kept);
    sem_wait(&released);
    for (volatile int step = 0; step < STEPS; step++) {
    }
    is_changing = false;
    PyGILState_Release(state);
}

static void wait_until_kept(void)
{
    sem_post(&ready);
    sem_wait(&kept);
}

/* Called without the GIL, which another thread has kept for so long when this forks; 0 in the child. */
int fork_while_kept(int milliseconds)
{
    wait_until_kept();
    poll(NULL, 0, milliseconds);
    pid_t child = fork();
    if (child != 0) {
        sem_post(&released);
    }
    return child;
}

/* In the child. */
static _Noreturn void enter_python(bool is_inconsistent)
{
    alarm(30);
    take_gil();
    _exit(is_inconsistent);
}

static void *fork_here_while_kept(void *status)
{
    pid_t child = fork_while_kept(1000);
    if (child == 0) {
        enter_python(false);
    }
    waitpid(child, status, 0);
    return NULL;
}

static void *fork_here_while_used(void *status)
{
    wait_until_kept();
    sem_post(&released);
    pid_t child = fork();
    if (child == 0) {
        enter_python(is_changing);
    }
    waitpid(child, status, 0);
    return NULL;
}

/* Fork on a thread that Python does not know; the child enters Python. Another thread keeps the GIL until after the fork. */
int fork_on_thread_while_kept(void)
{
    return run_on_thread(fork_here_while_kept);
}

/* The same while another thread is about to release the GIL; 256 if the child is a copy of what that had not completed. */
int fork_on_thread_while_used(void)
{
    return run_on_thread(fork_here_while_used);
}
