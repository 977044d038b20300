/* SPDX-License-Identifier: BSD-3-Clause */
/* Cards: what each rank tells all others when it joins a job, and what all compute from all
 * peer infos, each for itself and alike. */
#ifndef BNY_API_CARDS_H
#define BNY_API_CARDS_H

#include "collectives/world/world.h"
#include "transport/bootstrap/wire_pack.h"
#include "transport/process_place.h"

#define BNY_PEER_INFO_MAGIC     0x64726163u
#define BNY_PEER_INFO_CPU_WORDS 16 /* 1024 CPUs */
#define BNY_PEER_INFO_TPS       4
#define BNY_SETTINGS_MAX        256

/* Plain bytes, same library version on both sides (checked first). */
struct bny_peer_info {
    uint32_t magic, wire_version;
    char version[16];
    struct bny_place at; /* ranks alike in all of it share memory (shm_reachable()) */
    uint64_t cpus[BNY_PEER_INFO_CPU_WORDS];
    uint64_t group;   /* of processes that share the time of so many CPUs; */
    uint32_t granted; /* 0: no limit */
    uint32_t mbps;    /* of its network's devices, megabits a second; 0: unknown */
    char settings[BNY_SETTINGS_MAX];
    char transport[16];
    uint8_t nonce[16]; /* of rank 0: this start's; else 0 */
    uint8_t control[BNY_CONTROL_ADDR_MAX];
    struct {
        char name[16];
        uint32_t eager_max, slot_max, whole_max; /* of struct bny_tp */
        uint32_t len;
        uint8_t blob[BNY_ADDR_MAX];
    } tp[BNY_PEER_INFO_TPS];
};
_Static_assert(sizeof(struct bny_peer_info) <= BNY_PEER_INFO_MAX, "peer info");

/* All peer infos, in the order of ranks: peer table is of struct bny_peer_info. Do all run the
 * same version with the same settings? 0, -BANYAN_EVERSION, -BANYAN_ECONFIG, -BANYAN_ENOMEM. */
int bny_cards_check(struct bny_peer_table *table);
/* Fills in the world what follows from all peer infos: hosts and their ranks, the topology's
 * hosts, limits that every pair keeps. 0 or an error. */
int bny_cards_settle(struct bny_world *w, struct bny_peer_table *table);

#endif
