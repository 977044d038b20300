/* SPDX-License-Identifier: BSD-3-Clause */
/* Every public function, the lists being tests/style/symbols*.txt, with NULL, with handles that
 * were freed, inside a group, with a communicator that is gone, and with sizes that no version
 * of a struct has. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/training/entries.h"

enum { NAME_BYTES = 64 };
static char names[512][NAME_BYTES];
static size_t nnames;

static void read_list(const char *path)
{
    FILE *f = fopen(path, "r");

    cr_assert(f, "%s", path);
    while (nnames < 512 && fscanf(f, "%63s", names[nnames]) == 1)
        nnames++;
    fclose(f);
}

static void read_names(void)
{
    read_list(LISTS "/symbols.txt");
    read_list(LISTS "/symbols-training.txt");
    read_list(LISTS "/symbols-methods.txt");
    cr_assert(nnames > 200 && nnames < 512, "%zu functions", nnames);
}

/* What handles are made of. */
static struct banyan_object view;
static const size_t one[] = { COUNT };
static const int64_t shape[] = { 20, 20 };
static float gradient[COUNT];
static struct banyan_tensor tensors[] = { { "a", BANYAN_F32, 2, shape, gradient } };
static char buf[BUF_BYTES], to[BUF_BYTES];
static void *out[8];
static int done[8];

static void give_pointers(struct given *g)
{
    static union {
        size_t size;
        char room[4096];
    } stats;

    memset(buf, 0, sizeof buf);
    memset(&stats, 0, sizeof stats);
    stats.size = 64;
    g->buf = buf;
    g->to = to;
    g->out = out;
    g->done = done;
    g->counts = one;
    g->name = "allreduce";
    g->tensors = tensors;
    g->stats = &stats;
    g->view = &view;
}

static void make_objects(struct given *g)
{
    static const size_t none[] = { 0 };
    struct banyan_rows_plan plan = { sizeof plan, "rows", 4, 4, none, NULL, none };
    struct banyan_lazy_config lazy = BANYAN_LAZY_CONFIG_INIT;
    int rc = 0;

    lazy.alpha = 0.1;
    rc |= banyan_accordion_create(&g->accordion, g->comm, tensors, 1, NULL);
    rc |= banyan_outer_create(&g->outer, g->comm, tensors, 1, NULL);
    rc |= banyan_shared_mask_create(&g->mask, g->comm, tensors, 1, NULL);
    rc |= banyan_buckets_create(&g->buckets, g->comm, tensors, 1, NULL);
    rc |= banyan_lazy_create(&g->lazy, g->comm, COUNT, &lazy);
    rc |= banyan_gossip_create(&g->gossip, g->comm, tensors, 1, NULL);
    rc |= banyan_rows_create(&g->rows, g->comm, &plan, NULL);
    rc |= banyan_sketch_create(&g->sketch, g->comm, tensors, 1, NULL);
    rc |= banyan_stale_create(&g->stale, g->comm, tensors, 1, NULL);
    cr_assert_eq(rc, 0, "%s", banyan_last_error());
    banyan_lgc_create(&g->lgc, g->comm, tensors, 1, NULL);
}

static void make_handles(struct given *g)
{
    memset(g, 0, sizeof *g);
    cr_assert_eq(banyan_comm_init_env(&g->comm, NULL), 0, "%s", banyan_last_error());
    cr_assert_eq(banyan_barrier_init(g->comm, NULL, &g->req), 0);
    cr_assert_eq(banyan_codec_state_create(&g->state, COUNT, 1), 0);
    cr_assert_eq(banyan_objects_create(g->comm, NULL, &g->store), 0, "%s", banyan_last_error());
    make_objects(g);
}

static void free_objects(const struct given *g)
{
    banyan_accordion_free(g->accordion);
    banyan_outer_free(g->outer);
    banyan_shared_mask_free(g->mask);
    banyan_buckets_free(g->buckets);
    banyan_lgc_free(g->lgc);
    banyan_lazy_free(g->lazy);
    banyan_gossip_free(g->gossip);
    banyan_rows_free(g->rows);
    banyan_sketch_free(g->sketch);
    banyan_stale_free(g->stale);
}

static void free_handles(const struct given *g)
{
    free_objects(g);
    banyan_objects_destroy(g->store);
    banyan_codec_state_free(g->state);
    banyan_request_free(g->req);
    banyan_comm_destroy(g->comm);
}

/* ---- the list ---- */

Test(entries, every_function_has_a_row)
{
    struct given g = { 0 };

    read_names();
    for (size_t i = 0; i < nnames; i++) {
        struct entry e = { .name = names[i], .only_kind = 1 };

        entry_call(&e, &g);
        cr_expect_neq(e.kind, ENTRY_UNKNOWN, "%s has no row in entries.c", names[i]);
    }
}

/* ---- NULL and freed handles ---- */

static void expect_refusal(const struct entry *e, const char *with, int freed)
{
    switch (e->kind) {
    case ENTRY_CODE:
    case ENTRY_WAITS:
        cr_expect(freed ? e->rc == -BANYAN_EINVAL : e->rc < 0, "%s with %s: %ld", e->name, with,
                  e->rc);
        break;
    case ENTRY_FREE:
        cr_expect_eq(e->rc, freed ? -BANYAN_EINVAL : 0, "%s with %s: %ld", e->name, with,
                     e->rc);
        break;
    case ENTRY_SIZE:
    case ENTRY_POINTER: cr_expect_eq(e->rc, 0, "%s with %s: %ld", e->name, with, e->rc); break;
    default: break;
    }
}

static void refuse_all(struct given *g, const char *with, int freed)
{
    read_names();
    for (size_t i = 0; i < nnames; i++) {
        struct entry e = { .name = names[i] };

        entry_call(&e, g);
        expect_refusal(&e, with, freed && (g->lgc || strncmp(names[i], "banyan_lgc", 10) != 0));
    }
}

Test(entries, null_is_refused)
{
    struct given g = { 0 };

    refuse_all(&g, "NULL", 0);
}

Test(entries, freed_handles_are_refused)
{
    struct given g;

    make_handles(&g);
    free_handles(&g);
    give_pointers(&g);
    refuse_all(&g, "a freed handle", 1);
}

/* ---- live handles, but no pointers: a call may do what it likes, but for crashing ---- */

static int survives(const char *name)
{
    struct given g;
    int status;
    pid_t child = fork();

    if (child == 0) {
        struct entry e = { .name = name };

        make_handles(&g);
        entry_call(&e, &g);
        _exit(0);
    }
    return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

Test(entries, pointers_may_be_missing)
{
    read_names();
    for (size_t i = 0; i < nnames; i++)
        cr_expect(survives(names[i]), "%s with live handles and NULL", names[i]);
}

/* ---- inside a group ---- */

Test(entries, what_waits_is_refused_in_a_group)
{
    struct given g;
    int waits = 0;

    make_handles(&g);
    give_pointers(&g);
    read_names();
    for (size_t i = 0; i < nnames; i++) {
        struct entry e = { .name = names[i], .only_kind = 1 };

        if (strncmp(names[i], "banyan_lgc", 10) == 0 && !g.lgc)
            continue;
        entry_call(&e, &g);
        if (e.kind != ENTRY_WAITS)
            continue;
        e.only_kind = 0;
        cr_assert_eq(banyan_group_start(), 0);
        entry_call(&e, &g);
        cr_expect_eq(e.rc, -BANYAN_EBUSY, "%s in a group: %ld", names[i], e.rc);
        cr_expect(strstr(banyan_last_error(), "group"), "%s: %s", names[i],
                  banyan_last_error());
        cr_assert_eq(banyan_group_end(), 0, "%s", names[i]);
        waits++;
    }
    cr_expect_gt(waits, 40);
    free_handles(&g);
}

/* ---- objects whose communicator is gone ---- */

Test(entries, objects_tell_that_their_communicator_is_gone)
{
    struct given g;

    make_handles(&g);
    banyan_comm_destroy(g.comm);
    give_pointers(&g);
    read_names();
    for (size_t i = 0; i < nnames; i++) {
        struct entry e = { .name = names[i], .only_kind = 1 };

        entry_call(&e, &g);
        if (e.kind != ENTRY_WAITS || strncmp(names[i], "banyan_object_", 14) == 0 ||
            strncmp(names[i], "banyan_objects_finalize", 23) == 0)
            continue; /* a store has a communicator of its own */
        e.only_kind = 0;
        entry_call(&e, &g);
        cr_expect_eq(e.rc, -BANYAN_EINVAL, "%s: %ld", names[i], e.rc);
    }
    g.comm = NULL;
    free_handles(&g);
}

/* ---- sizes ---- */

static int is_of_a_version(size_t size)
{
    return size >= sizeof size && size % 8 == 0 && size <= 4096;
}

/* A call with settings of `size` bytes, which lie at the end of their memory: of an older
 * program, or of a newer one, which has set the last byte of its own members to `set`. */
static void cut_to(struct given *g, const char *name, const void *whole, size_t bytes,
                   size_t size, int set)
{
    size_t have = size < bytes ? size : bytes;
    size_t room = size < sizeof size ? sizeof size : size < 4096 ? size : bytes;
    struct entry e = { .name = name };
    char *s = calloc(1, room);
    void *made = NULL;

    memcpy(s, whole, have);
    memcpy(s, &size, sizeof size);
    if (set)
        s[size - 1] = 1;
    g->settings = s;
    g->out = &made;
    entry_call(&e, g);
    cr_expect_eq(e.rc, is_of_a_version(size) && !set ? 0 : -BANYAN_EINVAL,
                 "%s, %zu bytes: %ld, %s", name, size, e.rc, banyan_last_error());
    if (set)
        cr_expect(strstr(banyan_last_error(), "newer members"), "%s", banyan_last_error());
    cr_expect_eq(e.rc == 0, made != NULL, "%s, %zu bytes: %ld", name, size, e.rc);
    free(s);
}

/* What was made stays until the process ends. */
static void cut(struct given *g, const char *name, const void *whole, size_t bytes)
{
    for (size_t size = 0; size <= bytes + 16; size++)
        cut_to(g, name, whole, bytes, size, 0);
    cut_to(g, name, whole, bytes, bytes + 8, 1);
    cut_to(g, name, whole, bytes, 4095, 0);
    cut_to(g, name, whole, bytes, 5000, 0);
    cut_to(g, name, whole, bytes, SIZE_MAX, 0);
}

#define CUT(object, OBJECT)                                                                    \
    do {                                                                                       \
        struct banyan_##object##_config c = BANYAN_##OBJECT##_CONFIG_INIT;                     \
        cut(&g, "banyan_" #object "_create", &c, sizeof c);                                    \
    } while (0)

Test(entries, settings_of_older_and_newer_programs)
{
    struct banyan_lazy_config lazy = BANYAN_LAZY_CONFIG_INIT;
    struct given g;

    make_handles(&g);
    give_pointers(&g);
    CUT(accordion, ACCORDION);
    CUT(outer, OUTER);
    CUT(shared_mask, SHARED_MASK);
    CUT(buckets, BUCKETS);
    CUT(gossip, GOSSIP);
    CUT(sketch, SKETCH);
    CUT(stale, STALE);
    CUT(objects, OBJECTS);
    if (g.lgc)
        CUT(lgc, LGC);
    g.counts = (const size_t[]){ 0 };
    CUT(rows, ROWS);
    lazy.alpha = .1; /* it has no default: a size that leaves it out is refused, too */
    for (size_t size = 0; size <= sizeof lazy + 8; size++)
        if (!is_of_a_version(size) || size > offsetof(struct banyan_lazy_config, alpha))
            cut_to(&g, "banyan_lazy_create", &lazy, sizeof lazy, size, 0);
    cut_to(&g, "banyan_lazy_create", &lazy, sizeof lazy, sizeof lazy + 8, 1);
    _exit(0); /* nothing of it is freed: hundreds of objects */
}

/* `whole` cut to `size` bytes, or followed by members that only the caller knows. */
static void *cut_copy(const void *whole, size_t bytes, size_t size, int set)
{
    char *s = calloc(1, size);

    memcpy(s, whole, size < bytes ? size : bytes);
    memcpy(s, &size, sizeof size);
    s[size - 1] = (char)(set ? 1 : s[size - 1]);
    return s;
}

Test(entries, options_and_configs_are_cut_likewise)
{
    const struct banyan_opts whole = BANYAN_OPTS_INIT;
    const struct banyan_reduce_opts inputs = BANYAN_REDUCE_OPTS_INIT;
    const struct banyan_config config = BANYAN_CONFIG_INIT;
    struct banyan_opts reduce = BANYAN_OPTS_INIT;
    struct banyan_comm *comm, *more;
    float x = 1;

    cr_assert_eq(banyan_comm_init_env(&comm, NULL), 0);
    for (size_t size = sizeof size; size <= sizeof config + 16; size++) {
        int set = size > sizeof config, own_set = size > sizeof whole,
            inputs_set = size > sizeof inputs;
        int want = is_of_a_version(size) ? 0 : -BANYAN_EINVAL;
        void *o = cut_copy(&whole, sizeof whole, size, own_set);
        void *c = cut_copy(&config, sizeof config, size, set);
        void *i = cut_copy(&inputs, sizeof inputs, size, inputs_set);

        cr_expect_eq(banyan_allreduce(&x, &x, 1, BANYAN_F32, BANYAN_SUM, comm, o),
                     own_set ? -BANYAN_EINVAL : want, "opts of %zu bytes", size);
        cr_expect_eq(banyan_comm_init_env(&more, c), set ? -BANYAN_EINVAL : want,
                     "config of %zu bytes", size);
        banyan_comm_destroy(more);
        reduce.reduce = i;
        cr_expect_eq(banyan_allreduce(&x, &x, 1, BANYAN_F32, BANYAN_SUM, comm, &reduce),
                     inputs_set ? -BANYAN_EINVAL : want, "reduce_opts of %zu bytes", size);
        free(o);
        free(c);
        free(i);
    }
    banyan_comm_destroy(comm);
}

/* What a call fills: nothing behind the caller's struct, and members that the library does not
 * know with 0. */
static void fill(struct given *g, const char *name, size_t bytes)
{
    static unsigned char room[4096 + 8];

    g->stats = room;
    for (size_t size = 0; size <= bytes + 16; size++) {
        struct entry e = { .name = name };

        memset(room, 0xa5, sizeof room);
        memcpy(room, &size, sizeof size);
        entry_call(&e, g);
        cr_expect_eq(e.rc, is_of_a_version(size) ? 0 : -BANYAN_EINVAL, "%s, %zu bytes: %ld, %s",
                     name, size, e.rc, banyan_last_error());
        for (size_t at = size > sizeof size ? size : sizeof size; at < sizeof room; at++)
            cr_assert_eq(room[at], 0xa5, "%s wrote at %zu of %zu bytes", name, at, size);
        for (size_t at = bytes; e.rc == 0 && at < size; at++)
            cr_expect_eq(room[at], 0, "%s: byte %zu of a newer struct", name, at);
    }
}

#define FILL(name) fill(&g, "banyan_" #name, sizeof(struct banyan_##name))

Test(entries, filled_structs_of_older_and_newer_programs)
{
    struct given g;

    make_handles(&g);
    give_pointers(&g);
    fill(&g, "banyan_comm_stats", sizeof(struct banyan_stats));
    FILL(request_stats);
    FILL(objects_stats);
    FILL(buckets_stats);
    FILL(buckets_tensor_stats);
    FILL(rows_stats);
    FILL(sketch_stats);
    FILL(gossip_stats);
    FILL(lazy_stats);
    if (g.lgc)
        fill(&g, "banyan_lgc_get_stats", sizeof(struct banyan_lgc_stats));
    free_handles(&g);
}
