/* SPDX-License-Identifier: BSD-3-Clause */
/* Stands in for libcuda.so.1: what collectives/local/device.c uses of the driver API. Values
 * are those of cuda.h. */
#include "tests/support/fake_cuda.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/rng.h"

enum { MEMORY_TYPE = 2, DEVICE_ORDINAL = 9, TYPE_DEVICE = 2 };
enum { INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_CONTEXT = 201, INVALID_HANDLE = 400 };
enum { DEVICES = 2, RANGES = 64, STREAMS = 8, EVENTS = 32, PENDING = 64, STACK = 8 };

struct range {
    char *begin, *behind; /* of the device, and the same pages for the processor */
    size_t bytes;
    int device; /* -1: pinned memory of the host */
};

/* A copy, or an event that comes when all before it is done. */
struct work {
    char *dst;
    const char *src;
    size_t bytes;
    struct event *event;
};

struct stream {
    int device, is_made;
    struct work pending[PENDING];
    size_t first, end; /* counted for ever */
};

struct event {
    struct stream *stream; /* of the last record; NULL: done */
    size_t at;
    int is_made;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct range ranges[RANGES];
static int nranges;
static struct stream streams[STREAMS];
static struct event events[EVENTS];
static struct fake_cuda_counts count;
static char contexts[DEVICES]; /* a context is the address of its device's */
static uint64_t rng = 1;
static int error_after, query_error;
static size_t good_calls = SIZE_MAX;
static __thread int stack[STACK], depth;

static const struct range *range_of(const void *ptr)
{
    for (int i = 0; i < nranges; i++)
        if ((const char *)ptr >= ranges[i].begin &&
            (const char *)ptr < ranges[i].begin + ranges[i].bytes)
            return &ranges[i];
    return NULL;
}

static void *reach(const void *ptr)
{
    const struct range *r = range_of(ptr);

    return r ? r->behind + ((const char *)ptr - r->begin) : (void *)(uintptr_t)ptr;
}

static void run_one(struct stream *s)
{
    struct work *w = &s->pending[s->first++ % PENDING];

    if (w->bytes)
        memcpy(reach(w->dst), reach(w->src), w->bytes);
    if (w->event && w->event->stream == s && w->event->at < s->first)
        w->event->stream = NULL;
}

/* Every call begins here. Sometimes a device gets on with its work. */
static int enter(int needs_context)
{
    pthread_mutex_lock(&lock);
    count.calls++;
    for (int i = 0; i < STREAMS; i++)
        while (streams[i].first < streams[i].end && bny_rng_below(&rng, 4) == 0)
            run_one(&streams[i]);
    if (good_calls != SIZE_MAX && good_calls-- == 0) {
        good_calls = 0;
        return error_after;
    }
    return needs_context && !depth ? INVALID_CONTEXT : 0;
}

static int leave(int e)
{
    pthread_mutex_unlock(&lock);
    return e;
}

#define EXPORT __attribute__((visibility("default")))
typedef unsigned long long device_ptr;

EXPORT int cuPointerGetAttribute(void *data, int attribute, device_ptr ptr);
EXPORT int cuDeviceGet(int *device, int ordinal);
EXPORT int cuDevicePrimaryCtxRetain(void **context, int device);
EXPORT int cuCtxPushCurrent_v2(void *context);
EXPORT int cuCtxPopCurrent_v2(void **context);
EXPORT int cuStreamCreate(void **stream, unsigned flags);
EXPORT int cuStreamSynchronize(void *stream);
EXPORT int cuEventCreate(void **event, unsigned flags);
EXPORT int cuEventRecord(void *event, void *stream);
EXPORT int cuEventSynchronize(void *event);
EXPORT int cuMemHostAlloc(void **out, size_t bytes, unsigned flags);
EXPORT int cuMemcpyAsync(device_ptr dst, device_ptr src, size_t bytes, void *stream);
EXPORT int cuGetErrorString(int error, const char **text);
EXPORT const struct fake_cuda *fake_cuda(void);

/* Needs no context, and succeeds also after a failure. */
int cuPointerGetAttribute(void *data, int attribute, device_ptr ptr)
{
    const struct range *r;
    int e = 0;

    pthread_mutex_lock(&lock);
    r = range_of((void *)(uintptr_t)ptr);
    if (query_error)
        e = query_error;
    else if (!r || r->device < 0)
        e = INVALID_VALUE;
    else if (attribute == MEMORY_TYPE)
        *(unsigned *)data = TYPE_DEVICE;
    else if (attribute == DEVICE_ORDINAL)
        *(int *)data = r->device;
    else
        e = INVALID_VALUE;
    return leave(e);
}

int cuDeviceGet(int *device, int ordinal)
{
    int e = enter(0);

    if (!e && (ordinal < 0 || ordinal >= DEVICES))
        e = INVALID_VALUE;
    *device = ordinal + 100; /* a handle is no ordinal */
    return leave(e);
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
    int e = enter(0);

    if (!e && (device < 100 || device >= 100 + DEVICES))
        e = INVALID_VALUE;
    else
        *context = &contexts[device - 100];
    return leave(e);
}

int cuCtxPushCurrent_v2(void *context)
{
    int e = enter(0);

    if (!e && (!context || depth == STACK))
        e = INVALID_CONTEXT;
    if (!e) {
        stack[depth++] = (int)((char *)context - contexts);
        count.stack++;
    }
    return leave(e);
}

int cuCtxPopCurrent_v2(void **context)
{
    int e = enter(1);

    if (depth) { /* also behind a failure */
        depth--;
        count.stack--;
    }
    return leave(e);
}

int cuStreamCreate(void **stream, unsigned flags)
{
    int e = enter(1), i = 0;

    while (i < STREAMS && streams[i].is_made)
        i++;
    if (!e && i == STREAMS)
        e = OUT_OF_MEMORY;
    if (!e) {
        streams[i] = (struct stream){ .is_made = 1, .device = stack[depth - 1] };
        *stream = &streams[i];
        count.streams++;
    }
    return leave(e);
}

int cuStreamSynchronize(void *stream)
{
    struct stream *s = stream;
    int e = enter(1);

    if (!s || !s->is_made)
        return leave(e ? e : INVALID_HANDLE);
    while (s->first < s->end)
        run_one(s);
    return leave(e);
}

int cuEventCreate(void **event, unsigned flags)
{
    int e = enter(1), i = 0;

    while (i < EVENTS && events[i].is_made)
        i++;
    if (!e && i == EVENTS)
        e = OUT_OF_MEMORY;
    if (!e) {
        events[i].is_made = 1;
        *event = &events[i];
        count.events++;
    }
    return leave(e);
}

static void queue(struct stream *s, struct work w)
{
    if (s->end - s->first == PENDING)
        run_one(s);
    s->pending[s->end++ % PENDING] = w;
}

int cuEventRecord(void *event, void *stream)
{
    struct event *v = event;
    struct stream *s = stream;
    int e = enter(1);

    if (!e && (!v || !s || !v->is_made || !s->is_made))
        e = INVALID_HANDLE;
    if (!e) {
        v->stream = s;
        v->at = s->end;
        queue(s, (struct work){ .event = v });
    }
    return leave(e);
}

int cuEventSynchronize(void *event)
{
    struct event *v = event;
    int e = enter(1);

    if (!e && (!v || !v->is_made))
        e = INVALID_HANDLE;
    while (!e && v->stream)
        run_one(v->stream);
    return leave(e);
}

/* Adds pages: device -1 is pinned memory. The lock is held. */
static void *add_range(size_t bytes, int device)
{
    struct range *r = &ranges[nranges];
    size_t whole = (bytes + 4095) & ~(size_t)4095;
    int fd = memfd_create("device", 0);
    void *begin = MAP_FAILED, *behind = MAP_FAILED;

    if (fd >= 0 && nranges < RANGES && ftruncate(fd, (off_t)whole) == 0) {
        begin = mmap(NULL, whole, device < 0 ? PROT_READ | PROT_WRITE : PROT_NONE, MAP_SHARED,
                     fd, 0);
        behind = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    if (fd >= 0)
        close(fd);
    if (begin == MAP_FAILED || behind == MAP_FAILED)
        return NULL;
    *r = (struct range){ begin, behind, bytes, device };
    nranges++;
    return begin;
}

int cuMemHostAlloc(void **out, size_t bytes, unsigned flags)
{
    int e = enter(1);

    if (!e) {
        *out = add_range(bytes, -1);
        e = *out ? 0 : OUT_OF_MEMORY;
        count.pinned += e == 0;
    }
    return leave(e);
}

int cuMemcpyAsync(device_ptr dst, device_ptr src, size_t bytes, void *stream)
{
    struct stream *s = stream;
    char *to = (char *)(uintptr_t)dst, *from = (char *)(uintptr_t)src;
    const struct range *a, *b;
    int e = enter(1);

    if (e)
        return leave(e);
    a = range_of(to);
    b = range_of(from);
    if (!s || !s->is_made || (a && (size_t)(to - a->begin) + bytes > a->bytes) ||
        (b && (size_t)(from - b->begin) + bytes > b->bytes) ||
        (a && a->device >= 0 && a->device != s->device) ||
        (b && b->device >= 0 && b->device != s->device))
        return leave(INVALID_VALUE);
    count.copies++;
    queue(s, (struct work){ to, from, bytes, NULL });
    if (!a || !b) { /* pageable: a copy that waits */
        count.pageable++;
        while (s->first < s->end)
            run_one(s);
    }
    return leave(0);
}

int cuGetErrorString(int error, const char **text)
{
    *text = error == 700 ? "an illegal memory access was encountered" : "a fake error";
    return 0;
}

static void *fake_alloc(size_t bytes, int device)
{
    void *ptr;

    pthread_mutex_lock(&lock);
    ptr = add_range(bytes, device);
    pthread_mutex_unlock(&lock);
    return ptr;
}

static void *fake_reach(const void *ptr)
{
    return reach(ptr);
}

static void fake_seed(uint64_t seed)
{
    pthread_mutex_lock(&lock);
    rng = seed;
    pthread_mutex_unlock(&lock);
}

static void fake_fail(int error, size_t after)
{
    pthread_mutex_lock(&lock);
    error_after = error;
    good_calls = error ? after : SIZE_MAX;
    pthread_mutex_unlock(&lock);
}

static void fake_fail_queries(int error)
{
    pthread_mutex_lock(&lock);
    query_error = error;
    pthread_mutex_unlock(&lock);
}

static void fake_counts(struct fake_cuda_counts *out)
{
    pthread_mutex_lock(&lock);
    *out = count;
    pthread_mutex_unlock(&lock);
}

const struct fake_cuda *fake_cuda(void)
{
    static const struct fake_cuda table = { fake_alloc, fake_reach,        fake_seed,
                                            fake_fail,  fake_fail_queries, fake_counts };

    return &table;
}
