/* A library that puts a header before each block: what it returns is not the address that the allocator below gave. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { HEADER = 16 };

typedef struct {
    void *context;
    void *(*malloc)(void *context, size_t size);
    void *(*calloc)(void *context, size_t count, size_t size);
    void *(*realloc)(void *context, void *block, size_t size);
    void (*free)(void *context, void *block);
} allocator;

/* Of the Python that has loaded this. */
extern void PyMem_GetAllocator(int domain, allocator *found);
extern void PyMem_SetAllocator(int domain, const allocator *changed);

static allocator below;

static uint64_t mark_of(const char *block)
{
    return (uintptr_t)block ^ UINT64_C(0x5DEECE66D1234567);
}

static void *with_header(char *start)
{
    if (start == NULL) {
        return NULL;
    }
    uint64_t mark = mark_of(start + HEADER);
    memcpy(start, &mark, sizeof(mark));
    return start + HEADER;
}

/* Blocks from before have no header. The header ends here. */
static char *start_of(char *block)
{
    uint64_t mark = 0;
    if (block != NULL) {
        memcpy(&mark, block - HEADER, sizeof(mark));
    }
    if (block == NULL || mark != mark_of(block)) {
        return block;
    }
    memset(block - HEADER, 0, sizeof(mark));
    return block - HEADER;
}

static void *header_malloc(void *context, size_t size)
{
    (void)context;
    return with_header(below.malloc(below.context, size + HEADER));
}

static void *header_calloc(void *context, size_t count, size_t size)
{
    (void)context;
    return with_header(below.calloc(below.context, 1, count * size + HEADER));
}

static void *header_realloc(void *context, void *block, size_t size)
{
    char *start = start_of(block);
    if (start == block && block != NULL) {
        return below.realloc(below.context, block, size);
    }
    (void)context;
    return with_header(below.realloc(below.context, start, size + HEADER));
}

static void header_free(void *context, void *block)
{
    (void)context;
    below.free(below.context, start_of(block));
}

/* Needs the GIL. */
void add_headers(int domain)
{
    PyMem_GetAllocator(domain, &below);
    PyMem_SetAllocator(domain, &(allocator){NULL, header_malloc, header_calloc, header_realloc, header_free});
}
