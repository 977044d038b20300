/* SPDX-License-Identifier: BSD-3-Clause */
/* Two jobs of one user that derive the same id, as two that were started by hand with one
 * MASTER_ADDR and MASTER_PORT do: whatever the order in which their processes start, no two
 * roots gather side by side, so that no ranks are exchanged. All processes are driven by one
 * thread; a seed draws the order. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rng.h"
#include "support.h"
#include "transport/bootstrap/gather.h"
#include "transport/bootstrap/id.h"
#include "transport/bootstrap/launch.h"

TestSuite(two_jobs, .timeout = 120);

#define RANKS     4
#define PROCS     (2 * RANKS)
#define MEET      8    /* rounds in which two roots that gather must have met */
#define DRAWS     8    /* interleavings */
#define PAUSE_MAX 12   /* rounds between two starts */
#define ALONE     2000 /* rounds after which all who can have joined */
#define PORTS     BNY_LAUNCH_SPAN

static struct proc {
    struct bny_bootstrap *b;
    int rc, started;
    int info[2], got[RANKS][2]; /* job, rank */
    char text[512];
} procs[PROCS];

/* An id as launchers without a secret of their own derive it; nobody listens yet. */
static struct bny_id derived_id(void)
{
    struct bny_id id;
    struct bny_addr a;
    int fd[PORTS], n = 0;

    cr_assert_eq(bny_id_create(&id, "lo", "", 1), 0, "%s", banyan_last_error());
    close(bny_id_take_fd(&id));
    id.listening = 0;
    id.key_from = BNY_KEY_COOKIE;
    id.span = PORTS;
    for (id.port = (uint16_t)(21000 + getpid() % 400 * PORTS); n < PORTS; id.port++) {
        for (n = 0; n < PORTS; n++) {
            bny_id_addr(&id, &a);
            a.port = (uint16_t)(id.port + n);
            fd[n] = bny_net_listen_at(&a, 8);
            if (fd[n] < 0)
                break;
        }
        for (int i = 0; i < n; i++)
            close(fd[i]);
    }
    id.port--;
    return id;
}

static void end(struct proc *p, int rc)
{
    p->rc = rc;
    if (rc < 0)
        snprintf(p->text, sizeof p->text, "%s", banyan_last_error());
    bny_bootstrap_destroy(p->b);
    p->b = NULL;
}

static void start(const struct bny_id *id, int at)
{
    struct proc *p = &procs[at];
    int rank = at % RANKS, rc;

    p->info[0] = at / RANKS;
    p->info[1] = rank;
    p->started = 1;
    rc = bny_bootstrap_start(&p->b, id, RANKS, rank, p->info, sizeof p->info, "", "",
                             bny_deadline_in(60));
    if (rc < 0)
        end(p, rc);
}

static int lives(int at)
{
    return procs[at].started && !procs[at].rc;
}

/* Each process that lives has a turn, beginning at a drawn one. */
static void round_of_turns(uint64_t *rng)
{
    int first = (int)bny_rng_below(rng, PROCS);

    for (int i = 0; i < PROCS; i++) {
        struct proc *p = &procs[(first + i) % PROCS];
        int rc = lives((first + i) % PROCS) ? bny_bootstrap_progress(p->b, p->got) : 0;

        if (rc)
            end(p, rc);
    }
    test_round_over();
}

/* Who joined has one table with the others of its root, and its own peer info in it. */
static void check_table(int at)
{
    const struct proc *p = &procs[at], *root = &procs[p->got[0][0] * RANKS];

    cr_assert_eq(root->rc, 1, "process %d joined a root that failed: %s", at, root->text);
    cr_assert_eq(memcmp(p->got, root->got, sizeof p->got), 0, "process %d", at);
    cr_assert_eq(memcmp(p->got[at % RANKS], p->info, sizeof p->info), 0, "process %d", at);
}

/* A root that met the other has failed, though it may still wait for ranks to tell them. */
static void check_told(const struct proc *root)
{
    const char *text = root->rc ? root->text : root->b->text;

    cr_assert_eq(root->rc ? root->rc : root->b->error, -BANYAN_EPROTO, "job %d: %d %s",
                 root->info[0], root->rc, text);
    cr_assert(strstr(text, "MASTER_PORT"), "%s", text);
    cr_assert(strstr(text, "127.0.0.1:"), "%s", text);
}

static void draw(const struct bny_id *id, uint64_t *rng)
{
    int order[PROCS], together = 0, pause = 0, next = 0, alone = 0;
    uint64_t deadline = bny_deadline_in(30);

    memset(procs, 0, sizeof procs);
    for (int i = 0; i < PROCS; i++) {
        int k = (int)bny_rng_below(rng, (uint64_t)i + 1);

        order[i] = order[k];
        order[k] = i;
    }
    /* A root that is left alone may have lost ranks to the other, and would wait for them. */
    while (next < PROCS || (lives(0) && lives(RANKS)) || alone < ALONE) {
        cr_assert(!bny_deadline_passed(deadline), "the roots go on for ever");
        for (; next < PROCS && !pause; next++) {
            start(id, order[next]);
            pause = (int)bny_rng_below(rng, PAUSE_MAX);
        }
        pause -= pause > 0;
        round_of_turns(rng);
        together += lives(0) && lives(RANKS);
        alone += next == PROCS && !(lives(0) && lives(RANKS));
    }
    for (int i = 0; i < PROCS; i++)
        if (procs[i].rc == 1)
            check_table(i);
    for (int root = 0; together > MEET && root < PROCS; root += RANKS)
        check_told(&procs[root]);
    for (int i = 0; i < PROCS; i++)
        bny_bootstrap_destroy(procs[i].b);
}

Test(two_jobs, no_two_roots_gather_side_by_side)
{
    struct bny_id id = derived_id();
    uint64_t rng = test_seed();

    for (int i = 0; i < DRAWS; i++)
        draw(&id, &rng);
}

/* The first root of the two to be at a later port, as its first was taken then. */
Test(two_jobs, the_earlier_root_is_found_at_a_later_port)
{
    struct bny_id id = derived_id();
    struct bny_addr a;
    uint64_t rng = test_seed();
    int fd;

    memset(procs, 0, sizeof procs);
    bny_id_addr(&id, &a);
    fd = bny_net_listen_at(&a, 8);
    cr_assert_geq(fd, 0);
    start(&id, 0);
    close(fd);
    start(&id, RANKS);
    for (int i = 0; i < MEET; i++)
        round_of_turns(&rng);
    for (int root = 0; root < PROCS; root += RANKS) {
        check_told(&procs[root]);
        bny_bootstrap_destroy(procs[root].b);
    }
}
