/* SPDX-License-Identifier: BSD-3-Clause */
/* CUDA memory, when a driver library is in the process: told by the driver, and copied through
 * two pieces of pinned memory a device, so that the driver moves one while the processor copies
 * the other. Never run on a GPU: the tests' driver is tests/support/fake_cuda.c. */
#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <string.h>

#include "base/err.h"
#include "base/fork.h"
#include "collectives/local/memory_kind.h"

/* Of the driver API. */
enum { ATTRIBUTE_MEMORY_TYPE = 2, ATTRIBUTE_DEVICE_ORDINAL = 9 };
enum { MEMORY_DEVICE = 2, STREAM_NON_BLOCKING = 1, EVENT_NO_TIMING = 2, HOST_PORTABLE = 1 };
enum { INVALID_VALUE = 1, NOT_INITIALIZED = 3, DEINITIALIZED = 4 };
typedef unsigned long long device_ptr;

/* The functions used, by the names that the library exports. */
#define DRIVER_FUNCTIONS(F)                                                                    \
    F(attribute, cuPointerGetAttribute, (void *, int, device_ptr))                             \
    F(device_get, cuDeviceGet, (int *, int))                                                   \
    F(context, cuDevicePrimaryCtxRetain, (void **, int))                                       \
    F(push, cuCtxPushCurrent_v2, (void *))                                                     \
    F(pop, cuCtxPopCurrent_v2, (void **))                                                      \
    F(stream_create, cuStreamCreate, (void **, unsigned))                                      \
    F(stream_wait, cuStreamSynchronize, (void *))                                              \
    F(event_create, cuEventCreate, (void **, unsigned))                                        \
    F(event_record, cuEventRecord, (void *, void *))                                           \
    F(event_wait, cuEventSynchronize, (void *))                                                \
    F(pinned_alloc, cuMemHostAlloc, (void **, size_t, unsigned))                               \
    F(copy_start, cuMemcpyAsync, (device_ptr, device_ptr, size_t, void *))                     \
    F(error_text, cuGetErrorString, (int, const char **))
#define MEMBER(member, name, args) int(*member) args;

static struct {
    DRIVER_FUNCTIONS(MEMBER)
    const char *missing; /* the first function that the library has not */
    unsigned generation; /* of the process that loaded it: no child of fork can use it */
} driver;
static atomic_int driver_is_known;
static _Atomic unsigned long long looked_at; /* libraries loaded so far, when it was looked */

/* The first call tells how many libraries this process has ever loaded. */
static int take_loaded(struct dl_phdr_info *info, size_t size, void *loaded)
{
    *(unsigned long long *)loaded = info->dlpi_adds;
    return 1;
}

static int load(void *lib, void *function, const char *name)
{
    void *symbol = dlsym(lib, name);

    memcpy(function, &symbol, sizeof symbol);
    if (!symbol && !driver.missing)
        driver.missing = name;
    return symbol != NULL;
}

static void driver_take(void *lib)
{
    static struct bny_lock lock = BNY_LOCK(NULL);

    bny_lock_take(&lock);
    if (!atomic_load(&driver_is_known)) {
#define LOAD(member, name, args) load(lib, &driver.member, #name);
        DRIVER_FUNCTIONS(LOAD)
        driver.generation = bny_process_generation();
        atomic_store(&driver_is_known, 1);
        atomic_store(&bny_mem_others, 1);
    }
    bny_lock_give(&lock);
}

/* A driver library can have come only where some library has: to look for one by dlopen takes
 * 17 us, to count takes .1. It stays loaded. */
void bny_device_look(void)
{
    unsigned long long loaded = 0;
    void *lib;

    if (atomic_load_explicit(&driver_is_known, memory_order_relaxed))
        return;
    dl_iterate_phdr(take_loaded, &loaded);
    if (loaded && loaded == atomic_load_explicit(&looked_at, memory_order_relaxed))
        return;
    lib = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    atomic_store_explicit(&looked_at, loaded, memory_order_relaxed);
    if (lib)
        driver_take(lib);
}

static int driver_failed(int error, const char *what)
{
    const char *text = NULL;

    if (driver.error_text)
        driver.error_text(error, &text);
    return bny_fail(BANYAN_ESYSTEM, "CUDA's driver cannot %s: error %d, %s", what, error,
                    text ? text : "unknown");
}

/* Ordinary memory is an invalid value. Before and after a program uses CUDA there is no other.
 */
static int owns(const void *ptr)
{
    unsigned type = 0;
    int e;

    if (!atomic_load_explicit(&driver_is_known, memory_order_acquire) || !driver.attribute ||
        driver.generation != bny_process_generation())
        return 0;
    e = driver.attribute(&type, ATTRIBUTE_MEMORY_TYPE, (device_ptr)(uintptr_t)ptr);
    if (e == 0)
        return type == MEMORY_DEVICE;
    return e == INVALID_VALUE || e == NOT_INITIALIZED || e == DEINITIALIZED
               ? 0
               : driver_failed(e, "tell which memory a buffer is in");
}

/* ---- copies ---- */

#define DEVICES 64
#define PIECE   ((size_t)1 << 20)

/* What copies of one device use, one after another. Made by the first; stays. */
static struct queue {
    void *context, *stream, *events[2]; /* an event a piece: its last copy is done */
    char *pieces[2];                    /* pinned */
    int is_made;
} queues[DEVICES];
static struct bny_lock queues_lock = BNY_LOCK(NULL);

/* Its context is current. */
static int queue_make(struct queue *q)
{
    void *piece;
    int e = q->stream ? 0 : driver.stream_create(&q->stream, STREAM_NON_BLOCKING);

    for (int i = 0; i < 2 && e == 0; i++) {
        if (!q->events[i])
            e = driver.event_create(&q->events[i], EVENT_NO_TIMING);
        if (e == 0 && !q->pieces[i] && !(e = driver.pinned_alloc(&piece, PIECE, HOST_PORTABLE)))
            q->pieces[i] = piece;
    }
    q->is_made = e == 0;
    return e ? driver_failed(e, "give a stream and pinned memory") : 0;
}

/* Starts a copy between piece i and the device. */
static int piece_start(struct queue *q, int i, int is_out, char *device, size_t bytes)
{
    device_ptr piece = (uintptr_t)q->pieces[i], other = (uintptr_t)device;
    int e = is_out ? driver.copy_start(other, piece, bytes, q->stream)
                   : driver.copy_start(piece, other, bytes, q->stream);

    return e ? e : driver.event_record(q->events[i], q->stream);
}

static size_t part(size_t bytes, size_t at)
{
    return bytes - at < PIECE ? bytes - at : PIECE;
}

/* The driver fills one piece while the processor empties the other. */
static int from_device(struct queue *q, char *dst, const char *src, size_t bytes)
{
    char *from = (char *)(uintptr_t)src; /* only read */
    int e = piece_start(q, 0, 0, from, part(bytes, 0));

    for (size_t at = 0, k = 0; at < bytes && e == 0; at += PIECE, k++) {
        if (bytes - at > PIECE)
            e = piece_start(q, (int)(k + 1) & 1, 0, from + at + PIECE, part(bytes, at + PIECE));
        if (e == 0)
            e = driver.event_wait(q->events[k & 1]);
        if (e == 0)
            memcpy(dst + at, q->pieces[k & 1], part(bytes, at));
    }
    return e;
}

static int to_device(struct queue *q, char *dst, const char *src, size_t bytes)
{
    int e = 0;

    for (size_t at = 0, k = 0; at < bytes && e == 0; at += PIECE, k++) {
        if (k >= 2)
            e = driver.event_wait(q->events[k & 1]);
        if (e)
            break;
        memcpy(q->pieces[k & 1], src + at, part(bytes, at));
        e = piece_start(q, (int)k & 1, 1, dst + at, part(bytes, at));
    }
    return e;
}

/* queues_lock is held. */
static int queue_copy(struct queue *q, int device, void *dst, const void *src, size_t bytes,
                      int is_out)
{
    void *was;
    int id, e = 0, rc = 0;

    if (!q->context)
        e = driver.device_get(&id, device);
    if (e == 0 && !q->context)
        e = driver.context(&q->context, id);
    if (e == 0)
        e = driver.push(q->context);
    if (e)
        return driver_failed(e, "use the device");
    if (!q->is_made)
        rc = queue_make(q);
    if (rc == 0) {
        int late;

        e = is_out ? to_device(q, dst, src, bytes) : from_device(q, dst, src, bytes);
        late = driver.stream_wait(q->stream); /* also behind a failure: pieces are used again */
        e = e ? e : late;
        rc = e ? driver_failed(e, is_out ? "copy to the device" : "copy from the device") : 0;
    }
    driver.pop(&was);
    return rc;
}

/* One side is ours, the other is direct. */
static int device_copy(void *dst, const void *src, size_t bytes)
{
    int is_out = owns(dst), device = -1, rc;
    const void *ours = is_out ? dst : src;

    if (is_out < 0)
        return is_out;
    if (driver.missing)
        return bny_fail(
            BANYAN_ENOTSUP,
            "%p is memory of a CUDA device, whose driver has no %s: copy it to host "
            "memory first",
            ours, driver.missing);
    if (driver.attribute(&device, ATTRIBUTE_DEVICE_ORDINAL, (device_ptr)(uintptr_t)ours) ||
        device < 0 || device >= DEVICES)
        return bny_fail(BANYAN_ENOTSUP, "%p is memory of CUDA device %d; 0 to %d are served",
                        ours, device, DEVICES - 1);
    bny_lock_take(&queues_lock);
    rc = queue_copy(&queues[device], device, dst, src, bytes, is_out);
    bny_lock_give(&queues_lock);
    return rc;
}

const struct bny_mem_kind bny_mem_cuda = { .name = "CUDA", .owns = owns, .copy = device_copy };
