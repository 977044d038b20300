/* SPDX-License-Identifier: BSD-3-Clause */
/* Guarded buffers and their expected content. */
#include "tests/mp/image.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/mp/model.h"

void image_make(struct image *im, void *mem, size_t bytes, size_t misalign, uint64_t key)
{
    im->total = bytes + 2 * IMAGE_GUARD + 64;
    im->owned = mem == NULL;
    im->mem = mem ? mem : case_malloc(im->total);
    im->expect = case_malloc(im->total);
    im->lead = IMAGE_GUARD + misalign;
    im->data = im->mem + im->lead;
    im->bytes = bytes;
    /* A cheap pattern: any stray write of anything but this byte is seen. */
    memset(im->mem, (int)(0x41 + key % 100), im->total);
    memset(im->expect, (int)(0x41 + key % 100), im->total);
}

void image_want(struct image *im, size_t offset, const void *src, size_t bytes)
{
    memcpy(im->expect + im->lead + offset, src, bytes);
}

void image_put(struct image *im, size_t offset, const void *src, size_t bytes)
{
    memcpy(im->data + offset, src, bytes);
    image_want(im, offset, src, bytes);
}

size_t image_settle(struct image *im, size_t offset, size_t n, enum banyan_dtype dtype, int op)
{
    unsigned char *want = im->expect + im->lead + offset;
    size_t bad = model_compare(im->data + offset, want, n, dtype, (enum model_op)op);

    if (bad == n)
        memcpy(want, im->data + offset, n * banyan_dtype_bytes(dtype));
    return bad;
}

ptrdiff_t image_check(const struct image *im, int *ok)
{
    *ok = memcmp(im->mem, im->expect, im->total) == 0;
    if (*ok)
        return 0;
    for (size_t i = 0; i < im->total; i++)
        if (im->mem[i] != im->expect[i])
            return (ptrdiff_t)i - (ptrdiff_t)im->lead;
    return 0;
}

void image_free(struct image *im)
{
    if (im->owned)
        free(im->mem);
    free(im->expect);
    memset(im, 0, sizeof *im);
}

static void *map_memfd(const struct test *t, struct banyan_comm *comm, size_t bytes)
{
    int fd = memfd_create("suite", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    void *p;

    CHECK(t, fd >= 0 && ftruncate(fd, (off_t)bytes) == 0, "memfd");
    p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(t, p != MAP_FAILED, "mmap");
    CHECK_OK(t, banyan_mem_register(comm, p, bytes, fd, 0));
    close(fd);
    return p;
}

void image_pool_make(const struct test *t, struct banyan_comm *comm, struct image_pool *pool,
                     enum image_memory kind, size_t bytes)
{
    pool->kind = kind;
    pool->bytes = bytes;
    for (int i = 0; i < 2; i++) {
        if (kind == IMAGE_BANYAN)
            CHECK_OK(t, banyan_mem_alloc(comm, bytes, &pool->mem[i]));
        else
            pool->mem[i] = map_memfd(t, comm, bytes);
    }
}

void image_pool_free(const struct test *t, struct banyan_comm *comm, struct image_pool *pool)
{
    for (int i = 0; i < 2; i++) {
        if (pool->kind == IMAGE_BANYAN) {
            CHECK_OK(t, banyan_mem_free(comm, pool->mem[i]));
        } else {
            CHECK_OK(t, banyan_mem_deregister(comm, pool->mem[i]));
            munmap(pool->mem[i], pool->bytes);
        }
    }
}
