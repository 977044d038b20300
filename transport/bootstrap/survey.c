/* SPDX-License-Identifier: BSD-3-Clause */
/* Surveys: a rank asks all others for a text. Every rank passes a new question on to all its
 * neighbours, and remembers from which of them it came: answers go back there. A link that is
 * lost in between costs answers, and nobody sends them again: who asks asks again. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "transport/bootstrap/control.h"

#define QUEUED_MAX (1u << 20) /* bytes that wait for a neighbour: answers are dropped then */

struct survey_frame { /* the wire layout */
    int32_t by;
    uint32_t number;
    int32_t rank; /* of the answer; of a question 0 */
};
_Static_assert(sizeof(struct survey_frame) == 12, "wire");

uint32_t control_frame_max(const struct bny_control *c)
{
    size_t most = bny_consensus_message_max(c->nranks),
           answer = sizeof(struct survey_frame) + BNY_SURVEY_TEXT;

    return (uint32_t)(most > answer ? most : answer);
}

double bny_control_away_s(const struct bny_control *c)
{
    uint64_t here = atomic_load(&c->here_ns), now = bny_now_ns();

    return !here ? -1 : now > here ? (double)(now - here) * 1e-9 : 0;
}

/* NULL: the question is not the newest of who asks. */
static struct survey_seen *seen(struct bny_control *c, int32_t by, uint32_t number)
{
    struct survey_seen *q = c->surveys.seen ? &c->surveys.seen[by] : NULL;

    return q && q->number == number ? q : NULL;
}

/* Without memory nobody is asked. */
static struct survey_seen *newest(struct bny_control *c, int32_t by)
{
    struct surveys *s = &c->surveys;

    if (!s->seen)
        s->seen = calloc((size_t)c->nranks, sizeof *s->seen);
    return s->seen ? &s->seen[by] : NULL;
}

static void see(struct bny_control *c, struct survey_seen *q, const struct survey_frame *f,
                int via)
{
    c->surveys.nopen += !q->is_open;
    *q = (struct survey_seen){ .number = f->number, .via = via, .is_open = 1 };
    for (int i = 0; i < c->nlinks; i++)
        if (c->links[i].state == LINK_UP && c->links[i].peer != via &&
            bny_conn_unsent(c->links[i].conn) < QUEUED_MAX)
            bny_conn_send(c->links[i].conn, CONTROL_ASK, f, sizeof *f);
}

/* A question goes in circles: only what is newer than all before is new, so each ends. */
void survey_asked(struct bny_control *c, const struct link *from, const uint8_t *data,
                  size_t len)
{
    struct survey_seen *q;
    struct survey_frame f;

    if (len != sizeof f)
        return;
    memcpy(&f, data, sizeof f);
    if (f.by < 0 || f.by >= c->nranks || f.by == c->rank || c->agree.leaving)
        return;
    q = newest(c, f.by);
    if (!q || (int32_t)(f.number - q->number) <= 0)
        return;
    see(c, q, &f, from->peer);
    if (c->watcher)
        bny_control_wake(c);
}

/* An answer to this rank's own question. */
static void gather(struct bny_control *c, int rank, const char *text, size_t len)
{
    struct surveys *s = &c->surveys;
    char *grown;

    if (!s->answered || bny_bit(s->answered, rank))
        return;
    grown = realloc(s->text, s->len + len + 1);
    if (!grown)
        return;
    s->text = grown;
    for (size_t i = 0; i < len; i++) /* it is one line */
        s->text[s->len + i] = (unsigned char)text[i] < ' ' ? ' ' : text[i];
    s->len += len + 1;
    s->text[s->len - 1] = '\n';
    s->answered[rank / 64] |= (uint64_t)1 << (rank % 64);
    bny_control_wake(c);
}

static void pass_on(struct bny_control *c, const struct survey_frame *f, const void *text,
                    size_t len)
{
    const struct survey_seen *s = seen(c, f->by, f->number);
    struct link *l = s ? control_link_to(c, s->via) : NULL;

    if (l && l->state == LINK_UP && bny_conn_unsent(l->conn) < QUEUED_MAX)
        bny_conn_send_parts(l->conn, CONTROL_ANSWER, f, sizeof *f, text, len);
}

void survey_answered(struct bny_control *c, const uint8_t *data, size_t len)
{
    struct survey_frame f;

    if (len < sizeof f || len - sizeof f > BNY_SURVEY_TEXT)
        return;
    memcpy(&f, data, sizeof f);
    if (f.rank < 0 || f.rank >= c->nranks || f.by < 0 || f.by >= c->nranks)
        return;
    if (f.by != c->rank)
        pass_on(c, &f, data + sizeof f, len - sizeof f);
    else if (seen(c, f.by, f.number))
        gather(c, f.rank, (const char *)data + sizeof f, len - sizeof f);
}

void bny_control_survey_begin(struct bny_control *c)
{
    struct surveys *s = &c->surveys;
    size_t words = ((size_t)c->nranks + 63) / 64;
    struct survey_seen *q;

    pthread_mutex_lock(&c->lock);
    free(s->text);
    s->text = NULL;
    s->len = 0;
    if (!s->answered)
        s->answered = calloc(words, sizeof *s->answered);
    q = newest(c, c->rank);
    if (s->answered && q) {
        struct survey_frame f = { c->rank, q->number + 1, 0 };

        memset(s->answered, 0, words * sizeof *s->answered);
        see(c, q, &f, c->rank);
    }
    pthread_mutex_unlock(&c->lock);
}

int bny_control_survey_asked(struct bny_control *c, struct bny_survey *out)
{
    int is_asked = 0;

    pthread_mutex_lock(&c->lock);
    for (int r = 0; r < c->nranks && c->surveys.nopen && !is_asked; r++)
        if (c->surveys.seen[r].is_open) {
            *out = (struct bny_survey){ r, c->surveys.seen[r].number };
            is_asked = 1;
        }
    pthread_mutex_unlock(&c->lock);
    return is_asked;
}

void bny_control_survey_answer(struct bny_control *c, const struct bny_survey *s,
                               const char *text, size_t len)
{
    struct survey_frame f = { s->by, s->number, c->rank };
    struct survey_seen *q;

    pthread_mutex_lock(&c->lock);
    q = seen(c, s->by, s->number);
    if (q && q->is_open) {
        q->is_open = 0;
        c->surveys.nopen--;
    }
    if (q && len <= BNY_SURVEY_TEXT) {
        if (s->by == c->rank)
            gather(c, c->rank, text, len);
        else
            pass_on(c, &f, text, len);
    }
    pthread_mutex_unlock(&c->lock);
}

char *bny_control_survey_take(struct bny_control *c, size_t *len, int *missing)
{
    struct surveys *s = &c->surveys;
    char *text;

    pthread_mutex_lock(&c->lock);
    text = s->text;
    *len = s->len;
    s->text = NULL;
    s->len = 0;
    *missing = 0;
    for (int r = 0; r < c->nranks; r++)
        *missing += !bny_bit(c->agree.gone, r) && !(s->answered && bny_bit(s->answered, r));
    pthread_mutex_unlock(&c->lock);
    return text;
}

void survey_finish(struct bny_control *c)
{
    free(c->surveys.seen);
    free(c->surveys.text);
    free(c->surveys.answered);
}
