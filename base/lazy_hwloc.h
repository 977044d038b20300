/* SPDX-License-Identifier: BSD-3-Clause */
/* hwloc, loaded on first use (lazy.h). hwloc's inline functions that call others
 * (hwloc_get_obj_by_type and the like) bypass the table: use the functions by depth. */
#ifndef BNY_BASE_LAZY_HWLOC_H
#define BNY_BASE_LAZY_HWLOC_H

#include <hwloc.h>

#define BNY_HWLOC_FUNCTIONS(F)                                                                 \
    F(hwloc_topology_init)                                                                     \
    F(hwloc_topology_destroy)                                                                  \
    F(hwloc_topology_load)                                                                     \
    F(hwloc_topology_set_synthetic)                                                            \
    F(hwloc_topology_set_io_types_filter)                                                      \
    F(hwloc_topology_set_components)                                                           \
    F(hwloc_get_type_depth)                                                                    \
    F(hwloc_get_nbobjs_by_depth)                                                               \
    F(hwloc_get_obj_by_depth)                                                                  \
    F(hwloc_obj_type_is_dcache)                                                                \
    F(hwloc_bitmap_first)                                                                      \
    F(hwloc_bitmap_next)                                                                       \
    F(hwloc_bitmap_isset)                                                                      \
    F(hwloc_bitmap_weight)

#define BNY_LAZY_MEMBER(f) __typeof__(&f) f;
struct bny_hwloc_table {
    BNY_HWLOC_FUNCTIONS(BNY_LAZY_MEMBER)
};
#undef BNY_LAZY_MEMBER
extern struct bny_hwloc_table bny_hwloc_table;

/* 0, or -BANYAN_ENOTSUP: not installed. */
int bny_lazy_hwloc(void);

#define hwloc_topology_init                bny_hwloc_table.hwloc_topology_init
#define hwloc_topology_destroy             bny_hwloc_table.hwloc_topology_destroy
#define hwloc_topology_load                bny_hwloc_table.hwloc_topology_load
#define hwloc_topology_set_synthetic       bny_hwloc_table.hwloc_topology_set_synthetic
#define hwloc_topology_set_io_types_filter bny_hwloc_table.hwloc_topology_set_io_types_filter
#define hwloc_topology_set_components      bny_hwloc_table.hwloc_topology_set_components
#define hwloc_get_type_depth               bny_hwloc_table.hwloc_get_type_depth
#define hwloc_get_nbobjs_by_depth          bny_hwloc_table.hwloc_get_nbobjs_by_depth
#define hwloc_get_obj_by_depth             bny_hwloc_table.hwloc_get_obj_by_depth
#define hwloc_obj_type_is_dcache           bny_hwloc_table.hwloc_obj_type_is_dcache
#define hwloc_bitmap_first                 bny_hwloc_table.hwloc_bitmap_first
#define hwloc_bitmap_next                  bny_hwloc_table.hwloc_bitmap_next
#define hwloc_bitmap_isset                 bny_hwloc_table.hwloc_bitmap_isset
#define hwloc_bitmap_weight                bny_hwloc_table.hwloc_bitmap_weight

#endif
