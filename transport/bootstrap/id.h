/* SPDX-License-Identifier: BSD-3-Clause */
/* Inside the bootstrap: the parts of an id, and the table of listening sockets. Any thread. */
#ifndef BNY_BOOTSTRAP_ID_H
#define BNY_BOOTSTRAP_ID_H

#include "transport/bootstrap/bootstrap.h"
#include "transport/bootstrap/net.h"

#define BNY_ID_BACKLOG 1024 /* the kernel caps it at net.core.somaxconn */

/* Starts libsodium; cheap when done before. Returns 0 or -BANYAN_ESYSTEM. */
int bny_id_sodium(void);
/* Returns 0, or -BANYAN_EINVAL when the bytes are no id. */
int bny_id_check(const struct bny_id *id);
void bny_id_addr(const struct bny_id *id, struct bny_addr *out);
void bny_id_set_addr(struct bny_id *id, const struct bny_addr *addr, int span);
/* Puts a listening socket into the table; takes fd on success. Returns 0 or -BANYAN_ESYSTEM. */
int bny_id_adopt_fd(const struct bny_id *id, int fd);
/* 1: this process has not joined a job with this id before. Then a root that listened when the
 * id was made still listens until all ranks have joined. */
int bny_id_first_use(const struct bny_id *id);
/* Takes the id's listening socket out of the table; the caller owns it; -1: none. */
int bny_id_take_fd(const struct bny_id *id);

#endif
