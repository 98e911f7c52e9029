/*
 * A process for the inspector to read. The main thread obeys lines on its standard input and answers each with one line:
 *
 *   load PATH                  dlopen, needed before the others unless the library is preloaded or linked in
 *   storage HEX | null         the Elastic process storage, as these bytes
 *   record HEX | null | wild   this thread's record: these bytes, none, or a pointer to nowhere
 *   labels K=V,K=V… | null | wild | count N   this thread's label set, keys and values in hex; `-` is a null pointer
 *   socket PATH                binds a socket for datagrams
 *   hold N                     N threads that publish records of their own and wait
 *   flip N whole | torn        N threads that change their record and label as fast as they can: as the protocol says,
 *                              or in place, without invalidating
 *   signals N                  waits until N signals (SIGRTMIN) have been handled
 *   vfork                      a thread that sleeps inside the kernel until `wake`
 *   exec N                     a thread that executes this program anew, which does so again, N times
 *   leave                      ends the first thread; the others go on
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

enum { RECORD_BYTES = 37, MAX_LABELS = 64, HEX_BYTES = 32 };

struct text {
    size_t length;
    const unsigned char *bytes;
};

struct label {
    struct text key, value;
};

struct label_set {
    struct label *labels;
    size_t count, capacity;
};

struct worker {
    int number, torn;
    unsigned char records[2][RECORD_BYTES];
    unsigned char text[2][HEX_BYTES];
    struct label labels[2];
    struct label_set sets[2];
};

static char program[4096];
static atomic_int started;
static atomic_int handled;
static int wake_pipe[2];

typedef void **(*slot_function)(void);

static void **slot(const char *name)
{
    slot_function function = (slot_function)dlsym(RTLD_DEFAULT, name);
    return function ? function() : NULL;
}

static size_t from_hex(const char *text, size_t length, unsigned char *bytes)
{
    for (size_t at = 0; at + 1 < length; at += 2) {
        char digits[3] = {text[at], text[at + 1], 0};
        bytes[at / 2] = (unsigned char)strtoul(digits, NULL, 16);
    }
    return length / 2;
}

static void *bytes_of(const char *text)
{
    unsigned char *bytes = malloc(strlen(text) / 2 + 1);
    from_hex(text, strlen(text), bytes);
    return bytes;
}

static struct text text_of(const char *start, size_t length)
{
    if (length == 1 && *start == '-')
        return (struct text){0, NULL};
    unsigned char *bytes = malloc(length / 2 + 1);
    return (struct text){from_hex(start, length, bytes), bytes};
}

static void set_pointer(const char *name, const char *what)
{
    void **variable = slot(name);
    if (!variable)
        printf("no %s\n", name);
    else {
        *variable = !strcmp(what, "null") ? NULL : !strcmp(what, "wild") ? (void *)0x1000 : bytes_of(what);
        printf("set\n");
    }
}

static void set_labels(char *what)
{
    static struct label labels[MAX_LABELS];
    static struct label_set set = {labels, 0, MAX_LABELS};
    void **variable = slot("inspected_labels");
    if (!variable) {
        printf("no labels\n");
        return;
    }
    if (!strcmp(what, "null") || !strcmp(what, "wild")) {
        *variable = *what == 'n' ? NULL : (void *)0x1000;
    }
    else if (!strncmp(what, "count ", 6)) {
        set.count = strtoull(what + 6, NULL, 10);
        *variable = &set;
    }
    else {
        set.count = 0;
        for (char *part = strtok(what, ","); part; part = strtok(NULL, ",")) {
            char *middle = strchr(part, '=');
            labels[set.count].key = text_of(part, (size_t)(middle - part));
            labels[set.count].value = text_of(middle + 1, strlen(middle + 1));
            set.count++;
        }
        *variable = &set;
    }
    printf("set\n");
}

/* Version 1, valid, trace present; all bytes behind are one number, so that a mixture of two records shows. */
static void fill(struct worker *worker, int which)
{
    int mark = 1 + worker->number * 2 + which;
    memset(worker->records[which], mark, RECORD_BYTES);
    memcpy(worker->records[which], (unsigned char[]){1, 0, 1, 1}, 4);
    memset(worker->text[which], 'A' + mark, HEX_BYTES);
    worker->labels[which] = (struct label){{4, (const unsigned char *)"mark"}, {HEX_BYTES, worker->text[which]}};
    worker->sets[which] = (struct label_set){&worker->labels[which], 1, 1};
}

static struct worker *new_worker(int number)
{
    struct worker *worker = calloc(1, sizeof *worker);
    worker->number = number;
    fill(worker, 0);
    fill(worker, 1);
    return worker;
}

static void begin(struct worker *worker, void **record, void **labels)
{
    char name[16];
    snprintf(name, sizeof name, "worker-%d", worker->number);
    prctl(PR_SET_NAME, name);
    if (record)
        *record = worker->records[0];
    if (labels)
        *labels = &worker->sets[0];
    atomic_fetch_add(&started, 1);
}

static void *hold(void *argument)
{
    begin(argument, slot("inspected_record"), slot("inspected_labels"));
    for (;;)
        pause();
    return NULL;
}

/* The record that no reader looks at is invalidated, written, validated; then one store makes it the current one. */
static void flip_whole(struct worker *worker, void *volatile *record, void *volatile *labels)
{
    unsigned char content[RECORD_BYTES];
    for (unsigned turn = 1;; turn++) {
        int next = turn & 1;
        if (record) {
            volatile unsigned char *target = worker->records[next];
            memset(content, 1 + worker->number * 2 + next, RECORD_BYTES);
            target[2] = 0;
            atomic_signal_fence(memory_order_seq_cst);
            for (int at = 4; at < RECORD_BYTES; at++)
                target[at] = content[at];
            atomic_signal_fence(memory_order_seq_cst);
            target[2] = 1;
            atomic_signal_fence(memory_order_seq_cst);
            *record = worker->records[next];
        }
        if (labels)
            *labels = &worker->sets[next];
    }
}

static void flip_torn(struct worker *worker)
{
    volatile unsigned char *record = worker->records[0], *text = worker->text[0];
    for (unsigned turn = 1;; turn++) {
        int mark = 1 + worker->number * 2 + (int)(turn & 1);
        for (int at = 4; at < RECORD_BYTES; at++)
            record[at] = (unsigned char)mark;
        for (int at = 0; at < HEX_BYTES; at++)
            text[at] = (unsigned char)('A' + mark);
    }
}

static void *flip(void *argument)
{
    struct worker *worker = argument;
    void **record = slot("inspected_record"), **labels = slot("inspected_labels");
    begin(worker, record, labels);
    if (worker->torn)
        flip_torn(worker);
    else
        flip_whole(worker, record, labels);
    return NULL;
}

static void start_workers(int count, int torn, void *(*run)(void *))
{
    for (int number = 0; number < count; number++) {
        pthread_t thread;
        struct worker *worker = new_worker(number);
        worker->torn = torn;
        pthread_create(&thread, NULL, run, worker);
    }
    while (atomic_load(&started) < count)
        sched_yield();
    printf("started %d\n", count);
}

static void on_signal(int number)
{
    (void)number;
    atomic_fetch_add(&handled, 1);
}

static void *sleep_in_the_kernel(void *unused)
{
    (void)unused;
    printf("tid %ld\n", syscall(SYS_gettid));
    if (vfork() == 0) {
        char byte;
        _exit(read(wake_pipe[0], &byte, 1) == 1 ? 0 : 1);
    }
    printf("awake\n");
    for (;;)
        pause();
    return NULL;
}

static void *execute(void *left)
{
    char number[16];
    snprintf(number, sizeof number, "%d", (int)(intptr_t)left);
    execl(program, program, "exec", number, NULL);
    _exit(9);
}

static void execute_in_a_thread(int left)
{
    pthread_t thread;
    pthread_create(&thread, NULL, execute, (void *)(intptr_t)left);
    for (;;)
        pause();
}

static void load_library(char *path)
{
    printf("%s\n", dlopen(path, RTLD_NOW | RTLD_GLOBAL) ? "loaded" : dlerror());
}

static void set_storage(char *what)
{
    void **variable = slot("inspected_storage");
    if (variable)
        *variable = strcmp(what, "null") ? bytes_of(what) : NULL;
    printf("%s\n", variable ? "set" : "no storage");
}

static void set_record(char *what)
{
    set_pointer("inspected_record", what);
}

static void start_holding(char *count)
{
    start_workers(atoi(count), 0, hold);
}

static void start_flipping(char *what)
{
    start_workers(atoi(what), strstr(what, "torn") != NULL, flip);
}

static void wait_for_signals(char *count)
{
    while (atomic_load(&handled) < atoi(count))
        sched_yield();
    printf("handled %d\n", atomic_load(&handled));
}

static void bind_socket(char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    int receiver = socket(AF_UNIX, SOCK_DGRAM, 0);
    printf("%s\n", bind(receiver, (struct sockaddr *)&address, sizeof address) ? "not bound" : "bound");
}

static void start_vfork(char *unused)
{
    (void)unused;
    pthread_t thread;
    pthread_create(&thread, NULL, sleep_in_the_kernel, NULL);
}

static void wake(char *unused)
{
    (void)unused;
    if (write(wake_pipe[1], "", 1) != 1)
        abort();
}

static void start_execution(char *times)
{
    execute_in_a_thread(atoi(times));
}

static void leave(char *unused)
{
    (void)unused;
    pthread_exit(NULL);
}

static const struct {
    const char *name;
    void (*run)(char *rest);
} commands[] = {
    {"load", load_library},  {"storage", set_storage}, {"record", set_record},        {"labels", set_labels},
    {"hold", start_holding}, {"flip", start_flipping}, {"signals", wait_for_signals}, {"socket", bind_socket},
    {"vfork", start_vfork},  {"wake", wake},           {"exec", start_execution},     {"leave", leave},
};

static void obey(char *line)
{
    char *rest = strchr(line, ' ');
    if (rest)
        *rest++ = 0;
    for (size_t at = 0; at < sizeof commands / sizeof *commands; at++) {
        if (!strcmp(line, commands[at].name)) {
            commands[at].run(rest);
            return;
        }
    }
    printf("what is %s?\n", line);
}

int main(int argc, char **argv)
{
    static char line[1 << 16];
    setvbuf(stdout, NULL, _IONBF, 0);
    if (readlink("/proc/self/exe", program, sizeof program - 1) < 0 || pipe(wake_pipe) < 0)
        return 1;
    if (argc > 2 && atoi(argv[2]) > 0)
        execute_in_a_thread(atoi(argv[2]) - 1);
    signal(SIGRTMIN, on_signal);
    printf("ready\n");
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        obey(line);
    }
    return 0;
}
