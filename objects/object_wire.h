/* SPDX-License-Identifier: BSD-3-Clause */
/* How the store's messages are sent. */
#ifndef BNY_OBJECTS_OBJECT_WIRE_H
#define BNY_OBJECTS_OBJECT_WIRE_H

#include "objects/store.h"

#define BNY_OBJ_TALK 2 /* channels: of requests and answers, */
#define BNY_OBJ_BULK 3 /* and of objects' bytes, which do not hold those up */

int bny_obj_outboxes(struct bny_store *st); /* makes them: 0 or -BANYAN_ENOMEM */
int bny_spares_fill(struct bny_store *st);  /* 0 or -BANYAN_ENOMEM */
void bny_spares_free(struct bny_store *st);

#endif
