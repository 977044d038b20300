/* SPDX-License-Identifier: BSD-3-Clause */
/* Lack of memory, descriptors or locked memory for a connection: not the fault of the peer. The
 * next poll reports it as this rank's own failure. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/text.h"
#include "transport/verbs/lane.h"

/* A peer that we cannot answer retries, and the resource may return: it is a failure after this
 * time, without a pause in which no peer tried. */
#define LASTS_NS 2000000000u
#define PAUSE_NS 1000000000u

int bny_verbs_is_lack(int err)
{
    return err == ENOMEM || err == ENOBUFS || err == EMFILE || err == ENFILE;
}

void bny_verbs_lacks(struct vb_tp *t, int err, const char *fmt, ...)
{
    va_list ap;

    if (t->lack.err)
        return;
    va_start(ap, fmt);
    bny_vsnprintf(t->lack.why, sizeof t->lack.why, fmt, ap);
    va_end(ap);
    t->lack.err = err;
}

void bny_verbs_starves(struct vb_tp *t, int err, const char *why)
{
    uint64_t now = bny_now_ns();

    if (!t->lack.first_ns || now - t->lack.last_ns > PAUSE_NS)
        t->lack.first_ns = now;
    t->lack.last_ns = now;
    if (now - t->lack.first_ns > LASTS_NS)
        bny_verbs_lacks(t, err, "%s", why);
}

int bny_verbs_lack(const struct vb_tp *t)
{
    int err = t->lack.err;

    if (!err)
        return 0;
    return bny_fail(err == ENOMEM || err == ENOBUFS ? BANYAN_ENOMEM : BANYAN_ESYSTEM,
                    "no connections to other ranks: %s%s", t->lack.why,
                    err == EMFILE || err == ENFILE ? "; raise ulimit -n" : "");
}
