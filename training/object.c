/* SPDX-License-Identifier: BSD-3-Clause */
/* Objects: what every call with one asks first. */
#include "training/object.h"

#include <string.h>

#include "base/err.h"

void *bny_object_new(struct bny_handles *kind, void *out, struct banyan_comm *comm,
                     const char *what, int *rc)
{
    struct bny_object *o = NULL;

    *rc = out ? banyan_comm_may_wait(comm, what)
              : bny_fail(BANYAN_EINVAL, "%s: out must not be NULL", what);
    if (out)
        memset(out, 0, sizeof(void *));
    if (*rc == 0 && !(o = bny_handle_new(kind)))
        *rc = bny_fail(BANYAN_ENOMEM, "%s: no memory", what);
    if (o)
        o->comm = comm;
    return o;
}

int bny_object_check(const void *object, unsigned mark, const char *what)
{
    const struct bny_object *o = object;

    if (!o)
        return bny_fail(BANYAN_EINVAL, "%s: the object must not be NULL", what);
    if (!bny_handle_is(&o->handle, mark))
        return bny_fail(BANYAN_EINVAL, "%s: the object was freed already", what);
    return 0;
}

int bny_object_enter(const void *object, unsigned mark, const char *what)
{
    const struct bny_object *o = object;
    int rc = bny_object_check(o, mark, what);

    return rc ? rc : banyan_comm_may_wait(o->comm, what);
}

int bny_object_may_free(const void *object, unsigned mark, const char *what)
{
    int rc = object ? bny_object_check(object, mark, what) : 0;

    return object && rc == 0 ? 1 : rc;
}
