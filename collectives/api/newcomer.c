/* SPDX-License-Identifier: BSD-3-Clause */
/* Growing: a newcomer's part. By an id it got, or, as a process that its launcher has started
 * again, by ids that members post on the launcher's board, until one of them takes it. */
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include <sodium.h>

#include "base/param.h"
#include "collectives/api/grow.h"
#include "collectives/api/job.h"
#include "collectives/progress/progress.h"
#include "transport/bootstrap/board.h"
#include "transport/bootstrap/newcomers.h"

static const char what[] = "banyan_comm_join";
#define NAP_MS 10

/* Waits for its place. A post that is there no more ends the wait with -BANYAN_ERANKDEAD. */
static int find_place(const struct bny_id *id, struct bny_board *board, uint32_t post,
                      uint64_t deadline_ns, struct bny_newcomer_place *place)
{
    struct bny_arrival *a;
    int rc = bny_arrival_start(&a, id, deadline_ns);

    if (rc)
        return rc;
    while ((rc = bny_arrival_progress(a, place)) == 0) {
        struct pollfd p = { .fd = bny_arrival_fd(a), .events = POLLIN };

        if (board && bny_board_latest(board) != post) {
            rc = bny_fail(BANYAN_ERANKDEAD, "%s: the id is not in use any more", what);
            break;
        }
        poll(&p, 1, NAP_MS);
        bny_worlds_progress(NULL);
        bny_completed_call();
    }
    bny_arrival_free(a);
    return rc < 0 ? rc : 0;
}

static int take_place(struct banyan_comm **out, const struct bny_newcomer_place *place,
                      const struct banyan_config *cfg)
{
    int rc = bny_comm_enter_world(out, (const struct banyan_id *)&place->id, place->nranks,
                                  place->rank, cfg, NULL);

    if (rc == 0)
        rc = bny_grow_settle(*out, what);
    if (rc && *out)
        bny_comm_discard(out);
    return rc;
}

static int join_by_id(struct banyan_comm **out, const struct bny_id *id,
                      const struct banyan_config *cfg)
{
    struct bny_newcomer_place place;
    int rc = find_place(id, NULL, 0, bny_deadline_in(cfg->init_timeout_s), &place);

    if (rc == 0)
        rc = take_place(out, &place, cfg);
    sodium_memzero(&place, sizeof place);
    return rc;
}

/* Whatever was wrong was not with this process: another id may do. */
static int may_try_again(int rc)
{
    return rc == -BANYAN_ERANKDEAD || rc == -BANYAN_ETIMEDOUT || rc == -BANYAN_EABORTED ||
           rc == -BANYAN_EBUSY || rc == -BANYAN_EPROTO;
}

static int join_by_board(struct banyan_comm **out, struct bny_board *board,
                         const struct banyan_config *cfg)
{
    struct bny_newcomer_place place;
    struct bny_id id;
    uint32_t post = 0;
    int rc;

    do {
        bny_board_set_waiting(board, 1);
        rc = bny_board_await(board, &post, &id);
        if (rc)
            break;
        rc = find_place(&id, board, post, 0, &place);
        if (rc == 0) {
            bny_board_set_waiting(board, 0); /* before members can count again */
            rc = take_place(out, &place, cfg);
        }
        if (rc)
            bny_info("not joined yet: %s", banyan_last_error());
    } while (rc && may_try_again(rc));
    bny_board_set_waiting(board, 0);
    sodium_memzero(&place, sizeof place);
    sodium_memzero(&id, sizeof id);
    return rc;
}

int banyan_comm_join(struct banyan_comm **out, const struct banyan_id *id,
                     const struct banyan_config *cfg)
{
    struct banyan_config c;
    struct bny_board *board;
    int rc;

    if (!out)
        return bny_fail(BANYAN_EINVAL, "%s: out must not be NULL", what);
    *out = NULL;
    rc = bny_inside_may_wait(what);
    if (rc == 0)
        rc = bny_config_take(&c, cfg);
    if (rc)
        return rc;
    c.allgather = NULL; /* there is an id */
    if (id)
        return join_by_id(out, (const struct bny_id *)id, &c);
    board = bny_board_get();
    if (!board)
        return bny_fail(BANYAN_EINVAL,
                        "%s: id is NULL, and no banyan_run --restart has started this process: "
                        "give an id of banyan_comm_grow_id",
                        what);
    return join_by_board(out, board, &c);
}
