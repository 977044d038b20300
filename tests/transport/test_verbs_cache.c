/* SPDX-License-Identifier: BSD-3-Clause */
/* Memory that nobody registered, and that stays registered until it changes. The simulated
 * device reads memory by its address, so what a real one would do with pages of before is not
 * seen in what arrives; that memory which changed is registered anew is counted. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/rng.h"
#include "tests/support/key.h"
#include "tests/support/verbs_ranks.h"
#include "tests/support/verbs_sim.h"
#include "transport/verbs/cache.h"
#include "transport/verbs/watch.h"

TestSuite(verbs_cache, .timeout = 120);

#define KIB 1024u

/* Of the simulated device alone. */
static uint64_t registered(void)
{
    return verbs_real_device() ? 0 : verbs_sim.registered;
}

static int is_so_many(uint64_t more, uint64_t before)
{
    return verbs_real_device() || verbs_sim.registered == before + more;
}

static int flags = MAP_PRIVATE | MAP_ANONYMOUS;

static uint8_t *pages_at(void *where, size_t bytes, int more)
{
    void *at = mmap(where, bytes, PROT_READ | PROT_WRITE, flags | more, -1, 0);

    cr_assert(at != MAP_FAILED);
    return at;
}

static uint8_t *pages(size_t bytes)
{
    return pages_at(NULL, bytes, 0);
}

static void cached(struct tpset *s, const char *most)
{
    struct vb_watch *w;

    if (bny_verbs_watch_open(&w) != 0)
        cr_skip_test("%s", banyan_last_error());
    bny_verbs_watch_close(w);
    set_key("BANYAN_VERBS=cache", "uffd");
    set_key("BANYAN_VERBS=cache_bytes", most);
    verbs_joined(s, 2);
}

/* Both ends say what they are about to use. */
static void use_both(struct tpset *s, uint8_t *src, uint8_t *dst, uint32_t len)
{
    s->ops->use(s->tp[0], src, len);
    s->ops->use(s->tp[1], dst, len);
}

static void arrived(struct tpset *s, const uint8_t *dst, uint32_t len, uint32_t seq)
{
    struct bny_msg *msg = tpset_wait(s, 1, BNY_EV_MSG).msg;

    cr_assert_eq(msg->hdr.seq, seq);
    cr_assert_eq(tpset_check(dst, len, 0, 1, seq), -1);
    s->ops->release(msg);
}

static void put_to(struct tpset *s, uint8_t *src, const struct bny_window *win, uint32_t len,
                   uint32_t seq)
{
    struct bny_hdr hdr = tpset_hdr(0, seq, 0);

    hdr.kind = BNY_MSG_PUT;
    tpset_fill(src, len, 0, 1, seq);
    cr_assert_eq(s->ops->put(s->ep[0][1], &hdr, src, len, win, 0, src), 0);
}

/* An operation as the library runs it. */
static void round_of(struct tpset *s, uint8_t *src, uint8_t *dst, uint32_t len, uint32_t seq)
{
    struct bny_window win;

    use_both(s, src, dst, len);
    cr_assert_eq(s->ops->window_open(s->ep[1][0], dst, len, &win), 0);
    memset(dst, 0, len);
    put_to(s, src, &win, len, seq);
    arrived(s, dst, len, seq);
    cr_assert_eq(tpset_wait(s, 0, BNY_EV_SENT).cookie, src);
    cr_assert_eq(s->ops->window_close(s->ep[1][0], &win), 0);
}

Test(verbs_cache, buffers_are_registered_once_and_nothing_is_copied)
{
    const uint32_t len = 300000;
    uint8_t *src, *dst;
    uint64_t before, held;
    struct tpset s;

    cached(&s, "64M");
    src = malloc(len + 100);
    dst = malloc(len + 100);
    before = verbs_sim.registered;
    for (uint32_t i = 0; i < 5; i++) {
        struct bny_hdr hdr = tpset_hdr(1, 100 + i, 200000);
        uint8_t *got = malloc(200000);

        round_of(&s, src + 13, dst + 7, len, i);
        tpset_fill(src + 99, 200000, 0, 1, 100 + i);
        tpset_send(&s, 0, 1, &hdr, src + 99, src);
        struct bny_msg *msg = tpset_wait(&s, 1, BNY_EV_MSG).msg;
        tpset_read(&s, msg, got, 1 << 16, 1);
        cr_assert_eq(tpset_check(got, 200000, 0, 1, 100 + i), -1);
        s.ops->release(msg);
        tpset_wait(&s, 0, BNY_EV_SENT);
        free(got);
        cr_assert_eq(verbs_sim.registered - before, 2u);
    }
    cr_assert_eq(bny_counter_read(&s.tp[0]->staged_bytes), 0u);
    held = verbs_sim.registered_bytes;
    cr_assert_geq(bny_counter_read(&s.tp[0]->pinned_bytes), len);
    free(src);
    free(dst);
    cr_assert_eq(verbs_sim.registered_bytes, held, "nothing goes behind the device's back");
    verbs_left(&s);
}

/* Without it the same memory travels with a copy, and no window is opened onto it. */
Test(verbs_cache, it_is_off_unless_asked_for)
{
    uint8_t *src = pages(256 * KIB), *dst = pages(256 * KIB);
    struct bny_window win;
    struct tpset s;
    uint64_t before;

    set_key("BANYAN_VERBS=cache", NULL);
    verbs_joined(&s, 2);
    before = verbs_sim.registered;
    use_both(&s, src, dst, 256 * KIB);
    cr_assert_eq(s.ops->window_open(s.ep[1][0], dst, 256 * KIB, &win), -BANYAN_ENOTSUP);
    cr_assert_eq(verbs_sim.registered, before);
    verbs_left(&s);
}

/* ---- what changes ---- */

static void *anew(uint8_t *at, size_t bytes)
{
    munmap(at, bytes);
    return pages_at(at, bytes, MAP_FIXED_NOREPLACE);
}

static void *over(uint8_t *at, size_t bytes)
{
    return pages_at(at, bytes, MAP_FIXED);
}

static void *page_over(uint8_t *at, size_t bytes)
{
    pages_at(at + bytes / 2, 4096, MAP_FIXED);
    return at;
}

static void *not_needed(uint8_t *at, size_t bytes)
{
    cr_assert_eq(madvise(at + 4096, bytes - 4096, MADV_DONTNEED), 0);
    return at;
}

static void *freed(uint8_t *at, size_t bytes)
{
    cr_assert_eq(madvise(at, bytes, MADV_FREE), 0);
    return at;
}

static void *away_and_back(uint8_t *at, size_t bytes)
{
    uint8_t *there = pages(bytes);

    cr_assert_eq(mremap(at, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, there), there);
    cr_assert_eq(mremap(there, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, at), at);
    return at;
}

static void *shorter_and_longer(uint8_t *at, size_t bytes)
{
    cr_assert_eq(mremap(at, bytes, bytes / 2, 0), at);
    pages_at(at + bytes / 2, bytes / 2, MAP_FIXED_NOREPLACE);
    return at;
}

static void *moved(uint8_t *at, size_t bytes)
{
    uint8_t *there = pages(bytes);

    cr_assert_eq(mremap(at, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, there), there);
    return there;
}

Test(verbs_cache, what_changes_is_registered_anew)
{
    static void *(*const change[])(uint8_t *, size_t) = {
        anew, over, page_over, not_needed, freed, away_and_back, shorter_and_longer, moved,
    };
    const uint32_t len = 256 * KIB;
    uint64_t held = 0;
    struct tpset s;

    cached(&s, "64M");
    for (size_t i = 0; i < sizeof change / sizeof *change; i++) {
        uint8_t *src = pages(len), *dst = pages(len);
        uint64_t before;

        round_of(&s, src, dst, len, 0);
        before = registered();
        held = verbs_sim.registered_bytes;
        src = change[i](src, len);
        round_of(&s, src, dst, len, 1);
        cr_assert(is_so_many(1, before), "change %zu of what is sent", i);
        dst = change[i](dst, len);
        round_of(&s, src, dst, len, 2);
        cr_assert(is_so_many(2, before), "change %zu of what is received", i);
        cr_assert(verbs_real_device() || verbs_sim.registered_bytes == held,
                  "change %zu: it is given back", i);
        round_of(&s, src, dst, len, 3);
        cr_assert(is_so_many(2, before));
        munmap(src, len);
        munmap(dst, len);
    }
    verbs_left(&s);
}

Test(verbs_cache, the_heap_that_shrinks)
{
    const uint32_t len = 400 * KIB;
    uint8_t *dst;
    struct tpset s;

    mallopt(M_MMAP_THRESHOLD, 32 << 20);
    mallopt(M_TOP_PAD, 0);
    cached(&s, "64M");
    dst = pages(len);
    for (uint32_t i = 0; i < 4; i++) {
        uint64_t before = registered();
        uint8_t *src = malloc(len);

        round_of(&s, src, dst, len, i);
        cr_assert(is_so_many(1 + (i == 0), before));
        free(src);
        malloc_trim(0);
    }
    verbs_left(&s);
}

/* ---- what stays out ---- */

static void stays_out(struct tpset *s, void *at, size_t bytes, const char *what)
{
    uint64_t before = verbs_sim.registered;
    struct bny_window win;

    for (int i = 0; i < 3; i++) {
        s->ops->use(s->tp[1], at, bytes);
        cr_assert_eq(s->ops->window_open(s->ep[1][0], at, bytes, &win), -BANYAN_ENOTSUP, "%s",
                     what);
    }
    cr_assert_eq(verbs_sim.registered, before, "%s", what);
}

Test(verbs_cache, what_is_not_watched_is_copied)
{
    const size_t len = 256 * KIB;
    int fd = memfd_create("banyan-test", MFD_CLOEXEC), self = open("/proc/self/exe", O_RDONLY);
    struct tpset s;
    uint8_t *at;

    cached(&s, "1M");
    cr_assert_eq(ftruncate(fd, (off_t)len), 0);
    at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    stays_out(&s, at, len, "shared memory");
    at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    stays_out(&s, at, len, "a file in memory");
    at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE, self, 0);
    stays_out(&s, at, len, "a file of one's own");
    at = pages(len);
    cr_assert_eq(mprotect(at, len, PROT_READ), 0);
    stays_out(&s, at, len, "memory that is read only");
    at = pages(len);
    munmap(at + len / 2, 4096);
    stays_out(&s, at, len, "memory with a hole");
    stays_out(&s, pages(len), VB_CACHE_MIN - 1, "short memory");
    stays_out(&s, pages(2048 * KIB), 2048 * KIB, "more than there is room for");
    stays_out(&s, (void *)(UINTPTR_MAX - len), 2 * len, "what no memory is");
    close(fd);
    close(self);
    verbs_left(&s);
}

Test(verbs_cache, room_is_bounded_and_the_oldest_goes)
{
    const uint32_t len = 256 * KIB;
    uint8_t *buf[8], *dst = pages(len);
    uint64_t least, before;
    struct tpset s;

    cached(&s, "1M");
    least = verbs_sim.registered_bytes;
    for (int i = 0; i < 8; i++)
        buf[i] = pages(len);
    for (uint32_t i = 0; i < 40; i++) {
        round_of(&s, buf[i % 8], dst, len, i);
        cr_assert_leq(verbs_sim.registered_bytes, least + 2 * 1024 * KIB);
    }
    before = verbs_sim.registered;
    for (uint32_t i = 40; i > 36; i--) /* the latest four are still there */
        round_of(&s, buf[(i - 1) % 8], dst, len, i);
    cr_assert_eq(verbs_sim.registered, before);
    round_of(&s, buf[0], dst, len, 1);
    cr_assert_eq(verbs_sim.registered, before + 1);
    verbs_left(&s);
}

Test(verbs_cache, so_many_ranges)
{
    const uint32_t len = VB_CACHE_MIN, n = VB_CACHED + 100;
    uint8_t *all, *dst = pages(len);
    struct tpset s;
    uint64_t before;

    cached(&s, "1G");
    all = pages((size_t)2 * n * len);
    before = verbs_sim.registered_bytes;
    for (uint32_t i = 0; i < n; i++)
        round_of(&s, all + (size_t)2 * i * len, dst, len, i);
    cr_assert_eq(verbs_sim.registered_bytes - before, (VB_CACHED + 1ull) * len);
    munmap(all, (size_t)2 * n * len);
    round_of(&s, dst, dst, len, n);
    cr_assert_eq(verbs_sim.registered_bytes - before, 2ull * len, "rank 0 has one, rank 1 too");
    verbs_left(&s);
}

/* ---- what is in use ---- */

/* So many buffers of this length are registered besides. */
static int besides(uint64_t held, uint32_t len)
{
    return (int)((verbs_sim.registered_bytes + len / 2 - held) / len);
}

/* The other half of what is registered goes away in the middle of an operation. */
static void half_goes(struct tpset *s, int breaks, int devices)
{
    const uint32_t len = 256 * KIB;
    uint8_t *src = pages(len), *dst = pages(len), *other = pages(len);
    uint64_t held;
    struct bny_window win;

    round_of(s, src, dst, len, 0);
    held = verbs_sim.registered_bytes;
    use_both(s, src, dst, len / 2);
    cr_assert_eq(s->ops->window_open(s->ep[1][0], dst, len / 2, &win), 0);
    memset(dst, 0, len / 2);
    verbs_sim.write_delay = 1;
    put_to(s, src, &win, len / 2, 1);
    if (breaks) {
        verbs_break_pair(s, 0, 1);
        for (int i = 0; i < 20; i++)
            tpset_step(s);
    }
    munmap(src + len / 2, len / 2);
    munmap(dst + len / 2, len / 2);
    use_both(s, other, other, len); /* sees it */
    cr_assert_eq(besides(held, len), 2 * devices);
    verbs_sim.write_delay = 0;
    arrived(s, dst, len / 2, 1);
    cr_assert_eq(tpset_wait(s, 0, BNY_EV_SENT).cookie, src);
    use_both(s, other, other, len);
    cr_assert_eq(besides(held, len), devices, "the window is still open");
    cr_assert_eq(s->ops->window_close(s->ep[1][0], &win), 0);
    use_both(s, other, other, len);
    cr_assert_eq(besides(held, len), 0);
    munmap(src, len / 2);
    munmap(dst, len / 2);
    munmap(other, len);
}

Test(verbs_cache, requests_and_windows_keep_what_they_use)
{
    struct tpset s;

    cached(&s, "64M");
    half_goes(&s, 0, 1);
    half_goes(&s, 1, 1);
    cr_assert_eq(verbs_sim.bad_keys, 0u);
    verbs_left(&s);
}

Test(verbs_cache, several_devices_and_lanes)
{
    struct tpset s;

    verbs_sim.devices = 2;
    set_key("BANYAN_VERBS=qps", "2");
    cached(&s, "64M");
    verbs_lanes_joined(&s, 4);
    half_goes(&s, 0, 2);
    half_goes(&s, 1, 2);
    cr_assert_eq(verbs_sim.bad_keys, 0u);
    verbs_left(&s);
    set_key("BANYAN_VERBS=qps", NULL);
}

/* A child lives on when the cache has ended: memory that was watched can still be unmapped. */
Test(verbs_cache, a_child_holds_nothing_up)
{
    const uint32_t len = 256 * KIB;
    uint8_t *src = pages(len), *dst = pages(len);
    int ends[2], status;
    struct tpset s;
    char byte;
    pid_t pid;

    cached(&s, "64M");
    round_of(&s, src, dst, len, 0);
    cr_assert_eq(pipe(ends), 0);
    pid = fork();
    cr_assert_geq(pid, 0);
    if (pid == 0) {
        close(ends[1]);
        _exit(read(ends[0], &byte, 1) != 0); /* until its parent has closed the other end */
    }
    close(ends[0]);
    round_of(&s, src, dst, len, 1);
    verbs_left(&s);
    munmap(src, len);
    munmap(dst, len);
    close(ends[1]);
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert_eq(status, 0);
}

/* ---- what does not work ---- */

Test(verbs_cache, without_locked_memory_it_is_copied)
{
    const uint32_t len = 256 * KIB;
    uint8_t *a = pages(len), *b = pages(len);
    struct tpset s;

    cached(&s, "64M");
    round_of(&s, a, a, len, 0);
    verbs_sim.registrations = (int)verbs_sim.registered;
    stays_out(&s, b, len, "no memory may be locked");
    verbs_sim.registrations = 0;
    verbs_left(&s);
}

Test(verbs_cache, without_what_it_needs_it_is_off)
{
    uint8_t *at = pages(256 * KIB);
    struct tpset s;

    verbs_sim.no_fork = 1;
    cached(&s, "64M");
    stays_out(&s, at, 256 * KIB, "forks take pages");
    verbs_left(&s);
}

/* Memory that changes all the time is left alone from some time on. */
Test(verbs_cache, a_flood_ends_it)
{
    const uint32_t len = 256 * KIB;
    uint64_t deadline = bny_deadline_in(60), least;
    uint8_t *at = pages(len);
    struct tpset s;
    int ended = 0;

    cached(&s, "64M");
    least = verbs_sim.registered_bytes;
    while (!ended && !bny_deadline_passed(deadline)) {
        s.ops->use(s.tp[0], at, len);
        ended = bny_verbs_region((struct vb_tp *)s.tp[0], at, len) == NULL;
        cr_assert_eq(madvise(at, len, MADV_DONTNEED), 0);
    }
    cr_assert(ended);
    cr_assert_eq(verbs_sim.registered_bytes, least);
    stays_out(&s, pages(len), len, "rank 1 has seen no flood, but these are pages of before");
    verbs_left(&s);
}

/* ---- many threads ---- */

#define PLACES  6
#define THREADS 3

static struct {
    pthread_mutex_t transport, places; /* as the library's lock; of taken */
    struct tpset s;
    uint8_t *at;
    int taken[PLACES], rounds;
    uint64_t seed;
    int served, other;
} many = { .transport = PTHREAD_MUTEX_INITIALIZER, .places = PTHREAD_MUTEX_INITIALIZER };

static int take_place(uint64_t *rng)
{
    int k;

    pthread_mutex_lock(&many.places);
    do
        k = (int)bny_rng_below(rng, PLACES);
    while (many.taken[k]);
    many.taken[k] = 1;
    pthread_mutex_unlock(&many.places);
    return k;
}

static void leave_place(int k)
{
    pthread_mutex_lock(&many.places);
    many.taken[k] = 0;
    pthread_mutex_unlock(&many.places);
}

/* New memory where other threads had theirs a moment ago: what is registered of it was
 * registered now. The place is given back before the memory goes, so that the next thread may
 * have it as soon as the kernel allows. */
static void *thread_main(void *arg)
{
    const size_t len = 2 * VB_CACHE_MIN;
    struct vb_tp *t = (struct vb_tp *)many.s.tp[0];
    uint64_t rng = many.seed + (uintptr_t)arg;

    for (int i = 0; i < many.rounds; i++) {
        int k = take_place(&rng);
        uint8_t *want = many.at + (size_t)k * len, *at;

        do /* until who had it is done */
            at = mmap(want, len, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        while (at != want);
        for (int again = 0; again < 3; again++) {
            pthread_mutex_lock(&many.transport);
            uint64_t before = verbs_sim.registered;
            many.s.ops->use(&t->tp, at, len);
            int is_known = bny_verbs_region(t, at, len) != NULL;
            int is_new = verbs_sim.registered != before;
            if (is_known && is_new == (again == 1)) { /* changed before rounds 0 and 2 */
                fprintf(stderr, "seed %llu: round %d, look %d: %s\n",
                        (unsigned long long)many.seed, i, again,
                        is_new ? "registered again" : "pages of before");
                many.other++;
            }
            many.served += is_known;
            pthread_mutex_unlock(&many.transport);
            if (!is_known)
                break;
            if (again == 1 && madvise(at, len, MADV_DONTNEED) != 0)
                abort();
        }
        leave_place(k);
        munmap(at, len);
    }
    return NULL;
}

/* Addresses at which nothing is mapped, and far below those that the kernel chooses: a new
 * thread's stack, or what a sanitizer maps for it, would take them for good. */
static uint8_t *nobody_elses(size_t bytes)
{
    uint8_t *chosen = pages(bytes), *at = pages_at(chosen - ((size_t)64 << 30), bytes, 0);

    munmap(chosen, bytes);
    munmap(at, bytes);
    return at;
}

/* By turns, as a flood of changes ends a cache after three seconds. */
Test(verbs_cache, memory_changes_hands)
{
    const char *scale = getenv("BANYAN_TEST_SCALE");
    int turns = (int)(10 * (scale ? atof(scale) : 1)) + 1;
    pthread_t thread[THREADS];

    many.seed = bny_now_ns();
    many.rounds = 200;
    for (int turn = 0; turn < turns; turn++, many.seed += THREADS) {
        cached(&many.s, "64M");
        many.at = nobody_elses(PLACES * 2 * (size_t)VB_CACHE_MIN);
        for (uintptr_t i = 0; i < THREADS; i++)
            cr_assert_eq(pthread_create(&thread[i], NULL, thread_main, (void *)i), 0);
        for (int i = 0; i < THREADS; i++)
            pthread_join(thread[i], NULL);
        cr_assert_eq(many.other, 0, "seed %llu", (unsigned long long)many.seed);
        verbs_left(&many.s);
    }
    cr_assert_gt(many.served, turns, "%d", many.served);
}
