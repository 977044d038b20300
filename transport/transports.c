/* SPDX-License-Identifier: BSD-3-Clause */
/* The list of transports. A new one needs one line here and one in its meson.build. */
#include <string.h>

#include "transport/transport.h"

extern const struct bny_transport_ops bny_loop_ops, bny_shm_ops, bny_verbs_ops, bny_tcp_ops,
    bny_ud_ops, bny_dpdk_ops;

const struct bny_transport_ops *const bny_transports[] = {
    &bny_loop_ops,  &bny_shm_ops,
#ifdef BNY_HAVE_VERBS
    &bny_verbs_ops, &bny_ud_ops,
#endif
    &bny_dpdk_ops,  &bny_tcp_ops, NULL,
};

const struct bny_transport_ops *bny_transport_find(const char *name)
{
    for (int i = 0; bny_transports[i]; i++)
        if (!strcmp(bny_transports[i]->name, name))
            return bny_transports[i];
    return NULL;
}
