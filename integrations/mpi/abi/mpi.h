/* SPDX-License-Identifier: BSD-3-Clause */
/* <mpi.h> of the binary interface that MPI 5.0 fixes (chapter 20 and appendix A of the
 * standard), as far as the interposer uses it: libmpi_abi.so, of whatever maker. Programs are
 * not compiled with this, but with their MPI's mpi_abi.h; scripts/mpi-versions compiles the
 * interposer with such a one as well, and expects the same machine code. */
#ifndef BNY_MPI_ABI_MPI_H
#define BNY_MPI_ABI_MPI_H

#include <stdint.h>

typedef intptr_t MPI_Aint;
typedef int64_t MPI_Count;
typedef int64_t MPI_Offset;

/* Handles are pointers to nothing that anyone defines. Numbers below 4096 are the predefined
 * ones, which the standard spreads by kind, and data types of a fixed size by its logarithm. */
typedef struct MPI_ABI_Comm *MPI_Comm;
typedef struct MPI_ABI_Datatype *MPI_Datatype;
typedef struct MPI_ABI_Errhandler *MPI_Errhandler;
typedef struct MPI_ABI_File *MPI_File;
typedef struct MPI_ABI_Group *MPI_Group;
typedef struct MPI_ABI_Info *MPI_Info;
typedef struct MPI_ABI_Message *MPI_Message;
typedef struct MPI_ABI_Op *MPI_Op;
typedef struct MPI_ABI_Request *MPI_Request;
typedef struct MPI_ABI_Win *MPI_Win;

typedef struct {
    int MPI_SOURCE, MPI_TAG, MPI_ERROR;
    int MPI_internal[5];
} MPI_Status;

/* Columns. */
/* clang-format off */
#define MPI_COMM_NULL  ((MPI_Comm)0x100)
#define MPI_COMM_WORLD ((MPI_Comm)0x101)
#define MPI_COMM_SELF  ((MPI_Comm)0x102)

#define MPI_OP_NULL ((MPI_Op)0x20)
#define MPI_SUM     ((MPI_Op)0x21)
#define MPI_MIN     ((MPI_Op)0x22)
#define MPI_MAX     ((MPI_Op)0x23)
#define MPI_PROD    ((MPI_Op)0x24)
#define MPI_BAND    ((MPI_Op)0x28)
#define MPI_BOR     ((MPI_Op)0x29)
#define MPI_BXOR    ((MPI_Op)0x2a)
#define MPI_LAND    ((MPI_Op)0x30)
#define MPI_LOR     ((MPI_Op)0x31)
#define MPI_LXOR    ((MPI_Op)0x32)
#define MPI_MINLOC  ((MPI_Op)0x38)
#define MPI_MAXLOC  ((MPI_Op)0x39)
#define MPI_REPLACE ((MPI_Op)0x3c)
#define MPI_NO_OP   ((MPI_Op)0x3d)

#define MPI_DATATYPE_NULL           ((MPI_Datatype)0x200)
#define MPI_AINT                    ((MPI_Datatype)0x201)
#define MPI_COUNT                   ((MPI_Datatype)0x202)
#define MPI_OFFSET                  ((MPI_Datatype)0x203)
#define MPI_PACKED                  ((MPI_Datatype)0x207)
#define MPI_SHORT                   ((MPI_Datatype)0x208)
#define MPI_INT                     ((MPI_Datatype)0x209)
#define MPI_LONG                    ((MPI_Datatype)0x20a)
#define MPI_LONG_LONG               ((MPI_Datatype)0x20b)
#define MPI_UNSIGNED_SHORT          ((MPI_Datatype)0x20c)
#define MPI_UNSIGNED                ((MPI_Datatype)0x20d)
#define MPI_UNSIGNED_LONG           ((MPI_Datatype)0x20e)
#define MPI_UNSIGNED_LONG_LONG      ((MPI_Datatype)0x20f)
#define MPI_FLOAT                   ((MPI_Datatype)0x210)
#define MPI_C_FLOAT_COMPLEX         ((MPI_Datatype)0x212)
#define MPI_CXX_FLOAT_COMPLEX       ((MPI_Datatype)0x213)
#define MPI_DOUBLE                  ((MPI_Datatype)0x214)
#define MPI_C_DOUBLE_COMPLEX        ((MPI_Datatype)0x216)
#define MPI_CXX_DOUBLE_COMPLEX      ((MPI_Datatype)0x217)
#define MPI_LOGICAL                 ((MPI_Datatype)0x218)
#define MPI_INTEGER                 ((MPI_Datatype)0x219)
#define MPI_REAL                    ((MPI_Datatype)0x21a)
#define MPI_COMPLEX                 ((MPI_Datatype)0x21b)
#define MPI_DOUBLE_PRECISION        ((MPI_Datatype)0x21c)
#define MPI_DOUBLE_COMPLEX          ((MPI_Datatype)0x21d)
#define MPI_CHARACTER               ((MPI_Datatype)0x21e)
#define MPI_LONG_DOUBLE             ((MPI_Datatype)0x220)
#define MPI_C_LONG_DOUBLE_COMPLEX   ((MPI_Datatype)0x224)
#define MPI_CXX_LONG_DOUBLE_COMPLEX ((MPI_Datatype)0x225)
#define MPI_FLOAT_INT               ((MPI_Datatype)0x228)
#define MPI_DOUBLE_INT              ((MPI_Datatype)0x229)
#define MPI_LONG_INT                ((MPI_Datatype)0x22a)
#define MPI_2INT                    ((MPI_Datatype)0x22b)
#define MPI_SHORT_INT               ((MPI_Datatype)0x22c)
#define MPI_LONG_DOUBLE_INT         ((MPI_Datatype)0x22d)
#define MPI_2REAL                   ((MPI_Datatype)0x230)
#define MPI_2DOUBLE_PRECISION       ((MPI_Datatype)0x231)
#define MPI_2INTEGER                ((MPI_Datatype)0x232)
#define MPI_C_BOOL                  ((MPI_Datatype)0x238)
#define MPI_CXX_BOOL                ((MPI_Datatype)0x239)
#define MPI_WCHAR                   ((MPI_Datatype)0x23c)
#define MPI_INT8_T                  ((MPI_Datatype)0x240)
#define MPI_UINT8_T                 ((MPI_Datatype)0x241)
#define MPI_CHAR                    ((MPI_Datatype)0x243)
#define MPI_SIGNED_CHAR             ((MPI_Datatype)0x244)
#define MPI_UNSIGNED_CHAR           ((MPI_Datatype)0x245)
#define MPI_BYTE                    ((MPI_Datatype)0x247)
#define MPI_INT16_T                 ((MPI_Datatype)0x248)
#define MPI_UINT16_T                ((MPI_Datatype)0x249)
#define MPI_INT32_T                 ((MPI_Datatype)0x250)
#define MPI_UINT32_T                ((MPI_Datatype)0x251)
#define MPI_INT64_T                 ((MPI_Datatype)0x258)
#define MPI_UINT64_T                ((MPI_Datatype)0x259)
#define MPI_INTEGER1                ((MPI_Datatype)0x2c1)
#define MPI_INTEGER2                ((MPI_Datatype)0x2c9)
#define MPI_INTEGER4                ((MPI_Datatype)0x2d1)
#define MPI_REAL4                   ((MPI_Datatype)0x2d2)
#define MPI_INTEGER8                ((MPI_Datatype)0x2d9)
#define MPI_REAL8                   ((MPI_Datatype)0x2da)
#define MPI_COMPLEX8                ((MPI_Datatype)0x2db)
#define MPI_REAL16                  ((MPI_Datatype)0x2e2)
#define MPI_COMPLEX16               ((MPI_Datatype)0x2e3)
#define MPI_COMPLEX32               ((MPI_Datatype)0x2eb)

#define MPI_ERRORS_RETURN ((MPI_Errhandler)0x143)
#define MPI_REQUEST_NULL  ((MPI_Request)0x180)
/* clang-format on */

#define MPI_BOTTOM          ((void *)0)
#define MPI_IN_PLACE        ((void *)1)
#define MPI_STATUS_IGNORE   ((MPI_Status *)0)
#define MPI_STATUSES_IGNORE ((MPI_Status *)0)

#define MPI_SUCCESS       0
#define MPI_ERR_REQUEST   7
#define MPI_ERR_ARG       13
#define MPI_ERR_TRUNCATE  15
#define MPI_ERR_OTHER     16
#define MPI_ERR_INTERN    17
#define MPI_ERR_IN_STATUS 19
#define MPI_ERR_NO_MEM    39

#define MPI_ANY_SOURCE     (-1)
#define MPI_UNDEFINED      (-32766)
#define MPI_KEYVAL_INVALID 0

#define MPI_THREAD_SINGLE   0
#define MPI_THREAD_MULTIPLE 4096

#define MPI_COMBINER_NAMED      101
#define MPI_COMBINER_DUP        102
#define MPI_COMBINER_CONTIGUOUS 103

#define MPI_MAX_ERROR_STRING           512
#define MPI_MAX_LIBRARY_VERSION_STRING 8192

typedef int MPI_Comm_copy_attr_function(MPI_Comm, int, void *, void *, void *, int *);
typedef int MPI_Comm_delete_attr_function(MPI_Comm, int, void *, void *);
typedef int MPI_Grequest_query_function(void *, MPI_Status *);
typedef int MPI_Grequest_free_function(void *);
typedef int MPI_Grequest_cancel_function(void *, int);
#define MPI_COMM_NULL_COPY_FN ((MPI_Comm_copy_attr_function *)0)

/* Each function, also by its other name. */
#define F(name, ...)                                                                           \
    int MPI_##name(__VA_ARGS__);                                                               \
    int PMPI_##name(__VA_ARGS__);
/* A collective, non-blocking too, and both with large counts. */
#define FORMS(name, iname, args)                                                               \
    F(name, args(int, int))                                                                    \
    F(iname, args(int, int), MPI_Request *)                                                    \
    F(name##_c, args(MPI_Count, MPI_Aint))                                                     \
    F(iname##_c, args(MPI_Count, MPI_Aint), MPI_Request *)

/* A function a line, as far as it fits. */
/* clang-format off */
#define SUM(COUNT, DISPL)  const void *, void *, COUNT, MPI_Datatype, MPI_Op, MPI_Comm
#define SUMS(COUNT, DISPL) const void *, void *, const COUNT *, MPI_Datatype, MPI_Op, MPI_Comm
#define SUM_TO(COUNT, DISPL) \
    const void *, void *, COUNT, MPI_Datatype, MPI_Op, int, MPI_Comm
#define ONE(COUNT, DISPL)  void *, COUNT, MPI_Datatype, int, MPI_Comm
#define ALL(COUNT, DISPL) \
    const void *, COUNT, MPI_Datatype, void *, COUNT, MPI_Datatype, MPI_Comm
#define ALL_TO(COUNT, DISPL) \
    const void *, COUNT, MPI_Datatype, void *, COUNT, MPI_Datatype, int, MPI_Comm
#define TO_BLOCKS(COUNT, DISPL) \
    const void *, COUNT, MPI_Datatype, void *, const COUNT *, const DISPL *, MPI_Datatype
#define ALLGATHERV(COUNT, DISPL) TO_BLOCKS(COUNT, DISPL), MPI_Comm
#define GATHERV(COUNT, DISPL)    TO_BLOCKS(COUNT, DISPL), int, MPI_Comm
#define SCATTERV(COUNT, DISPL) \
    const void *, const COUNT *, const DISPL *, MPI_Datatype, void *, COUNT, MPI_Datatype, \
    int, MPI_Comm
#define ALLTOALLV(COUNT, DISPL) \
    const void *, const COUNT *, const DISPL *, MPI_Datatype, void *, const COUNT *, \
    const DISPL *, MPI_Datatype, MPI_Comm

FORMS(Allreduce, Iallreduce, SUM)
FORMS(Reduce, Ireduce, SUM_TO)
FORMS(Bcast, Ibcast, ONE)
FORMS(Reduce_scatter, Ireduce_scatter, SUMS)
FORMS(Reduce_scatter_block, Ireduce_scatter_block, SUM)
FORMS(Allgather, Iallgather, ALL)
FORMS(Allgatherv, Iallgatherv, ALLGATHERV)
FORMS(Gather, Igather, ALL_TO)
FORMS(Gatherv, Igatherv, GATHERV)
FORMS(Scatter, Iscatter, ALL_TO)
FORMS(Scatterv, Iscatterv, SCATTERV)
FORMS(Alltoall, Ialltoall, ALL)
FORMS(Alltoallv, Ialltoallv, ALLTOALLV)
FORMS(Scan, Iscan, SUM)
FORMS(Exscan, Iexscan, SUM)

F(Init, int *, char ***)
F(Init_thread, int *, char ***, int, int *)
F(Finalize, void)
F(Op_free, MPI_Op *)
F(Type_free, MPI_Datatype *)
F(Comm_disconnect, MPI_Comm *)
F(Barrier, MPI_Comm)
F(Ibarrier, MPI_Comm, MPI_Request *)

F(Wait, MPI_Request *, MPI_Status *)
F(Waitall, int, MPI_Request *, MPI_Status *)
F(Waitany, int, MPI_Request *, int *, MPI_Status *)
F(Waitsome, int, MPI_Request *, int *, int *, MPI_Status *)
F(Test, MPI_Request *, int *, MPI_Status *)
F(Testall, int, MPI_Request *, int *, MPI_Status *)
F(Testany, int, MPI_Request *, int *, int *, MPI_Status *)
F(Testsome, int, MPI_Request *, int *, int *, MPI_Status *)
F(Request_get_status, MPI_Request, int *, MPI_Status *)
F(Send, const void *, int, MPI_Datatype, int, int, MPI_Comm)
F(Ssend, const void *, int, MPI_Datatype, int, int, MPI_Comm)
F(Rsend, const void *, int, MPI_Datatype, int, int, MPI_Comm)
F(Recv, void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Status *)
F(Sendrecv, const void *, int, MPI_Datatype, int, int, void *, int, MPI_Datatype, int, int,
  MPI_Comm, MPI_Status *)
F(Probe, int, int, MPI_Comm, MPI_Status *)
F(Mprobe, int, int, MPI_Comm, MPI_Message *, MPI_Status *)
F(Mrecv, void *, int, MPI_Datatype, MPI_Message *, MPI_Status *)
F(Iprobe, int, int, MPI_Comm, int *, MPI_Status *)
F(Improbe, int, int, MPI_Comm, int *, MPI_Message *, MPI_Status *)
F(Win_test, MPI_Win, int *)
F(Start, MPI_Request *)
F(Startall, int, MPI_Request *)
F(Request_free, MPI_Request *)
F(Recv_init, void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *)

F(Sendrecv_replace, void *, int, MPI_Datatype, int, int, int, int, MPI_Comm, MPI_Status *)
F(Bsend, const void *, int, MPI_Datatype, int, int, MPI_Comm)
F(Buffer_detach, void *, int *)
F(Alltoallw, const void *, const int *, const int *, const MPI_Datatype *, void *,
  const int *, const int *, const MPI_Datatype *, MPI_Comm)
F(Neighbor_allgather, const void *, int, MPI_Datatype, void *, int, MPI_Datatype, MPI_Comm)
F(Neighbor_allgatherv, const void *, int, MPI_Datatype, void *, const int *, const int *,
  MPI_Datatype, MPI_Comm)
F(Neighbor_alltoall, const void *, int, MPI_Datatype, void *, int, MPI_Datatype, MPI_Comm)
F(Neighbor_alltoallv, const void *, const int *, const int *, MPI_Datatype, void *,
  const int *, const int *, MPI_Datatype, MPI_Comm)
F(Neighbor_alltoallw, const void *, const int *, const MPI_Aint *, const MPI_Datatype *,
  void *, const int *, const MPI_Aint *, const MPI_Datatype *, MPI_Comm)
F(Comm_dup, MPI_Comm, MPI_Comm *)
F(Comm_idup, MPI_Comm, MPI_Comm *, MPI_Request *)
F(Comm_dup_with_info, MPI_Comm, MPI_Info, MPI_Comm *)
F(Comm_split, MPI_Comm, int, int, MPI_Comm *)
F(Comm_split_type, MPI_Comm, int, int, MPI_Info, MPI_Comm *)
F(Comm_create, MPI_Comm, MPI_Group, MPI_Comm *)
F(Comm_create_group, MPI_Comm, MPI_Group, int, MPI_Comm *)
F(Comm_free, MPI_Comm *)
F(Intercomm_create, MPI_Comm, int, MPI_Comm, int, int, MPI_Comm *)
F(Intercomm_merge, MPI_Comm, int, MPI_Comm *)
F(Comm_accept, const char *, MPI_Info, int, MPI_Comm, MPI_Comm *)
F(Comm_connect, const char *, MPI_Info, int, MPI_Comm, MPI_Comm *)
F(Comm_join, int, MPI_Comm *)
F(Comm_spawn, const char *, char **, int, MPI_Info, int, MPI_Comm, MPI_Comm *, int *)
F(Comm_spawn_multiple, int, char **, char ***, const int *, const MPI_Info *, int, MPI_Comm,
  MPI_Comm *, int *)
F(Cart_create, MPI_Comm, int, const int *, const int *, int, MPI_Comm *)
F(Cart_sub, MPI_Comm, const int *, MPI_Comm *)
F(Graph_create, MPI_Comm, int, const int *, const int *, int, MPI_Comm *)
F(Dist_graph_create, MPI_Comm, int, const int *, const int *, const int *, const int *,
  MPI_Info, int, MPI_Comm *)
F(Dist_graph_create_adjacent, MPI_Comm, int, const int *, const int *, int, const int *,
  const int *, MPI_Info, int, MPI_Comm *)
F(Win_create, void *, MPI_Aint, int, MPI_Info, MPI_Comm, MPI_Win *)
F(Win_allocate, MPI_Aint, int, MPI_Info, MPI_Comm, void *, MPI_Win *)
F(Win_allocate_shared, MPI_Aint, int, MPI_Info, MPI_Comm, void *, MPI_Win *)
F(Win_create_c, void *, MPI_Aint, MPI_Aint, MPI_Info, MPI_Comm, MPI_Win *)
F(Win_allocate_c, MPI_Aint, MPI_Aint, MPI_Info, MPI_Comm, void *, MPI_Win *)
F(Win_allocate_shared_c, MPI_Aint, MPI_Aint, MPI_Info, MPI_Comm, void *, MPI_Win *)
F(Win_create_dynamic, MPI_Info, MPI_Comm, MPI_Win *)
F(Win_free, MPI_Win *)
F(Win_fence, int, MPI_Win)
F(Win_complete, MPI_Win)
F(Win_wait, MPI_Win)
F(Win_start, MPI_Group, int, MPI_Win)
F(Win_lock, int, int, int, MPI_Win)
F(Win_lock_all, int, MPI_Win)
F(Win_unlock, int, MPI_Win)
F(Win_unlock_all, MPI_Win)
F(Win_flush, int, MPI_Win)
F(Win_flush_all, MPI_Win)
F(File_open, MPI_Comm, const char *, int, MPI_Info, MPI_File *)
F(File_close, MPI_File *)
F(File_set_size, MPI_File, MPI_Offset)
F(File_preallocate, MPI_File, MPI_Offset)
F(File_set_view, MPI_File, MPI_Offset, MPI_Datatype, MPI_Datatype, const char *, MPI_Info)
F(File_sync, MPI_File)
F(File_read_all, MPI_File, void *, int, MPI_Datatype, MPI_Status *)
F(File_write_all, MPI_File, const void *, int, MPI_Datatype, MPI_Status *)
F(File_read_at_all, MPI_File, MPI_Offset, void *, int, MPI_Datatype, MPI_Status *)
F(File_write_at_all, MPI_File, MPI_Offset, const void *, int, MPI_Datatype, MPI_Status *)
F(File_read_ordered, MPI_File, void *, int, MPI_Datatype, MPI_Status *)
F(File_write_ordered, MPI_File, const void *, int, MPI_Datatype, MPI_Status *)
F(File_read_all_end, MPI_File, void *, MPI_Status *)
F(File_write_all_end, MPI_File, const void *, MPI_Status *)
F(File_read_at_all_end, MPI_File, void *, MPI_Status *)
F(File_write_at_all_end, MPI_File, const void *, MPI_Status *)
F(File_read_ordered_end, MPI_File, void *, MPI_Status *)
F(File_write_ordered_end, MPI_File, const void *, MPI_Status *)
F(File_seek_shared, MPI_File, MPI_Offset, int)

F(Abort, MPI_Comm, int)
F(Add_error_class, int *)
F(Add_error_code, int, int *)
F(Add_error_string, int, const char *)
F(Comm_call_errhandler, MPI_Comm, int)
F(Comm_create_keyval, MPI_Comm_copy_attr_function *, MPI_Comm_delete_attr_function *, int *,
  void *)
F(Comm_delete_attr, MPI_Comm, int)
F(Comm_free_keyval, int *)
F(Comm_get_attr, MPI_Comm, int, void *, int *)
F(Comm_get_errhandler, MPI_Comm, MPI_Errhandler *)
F(Comm_group, MPI_Comm, MPI_Group *)
F(Comm_rank, MPI_Comm, int *)
F(Comm_set_attr, MPI_Comm, int, void *)
F(Comm_set_errhandler, MPI_Comm, MPI_Errhandler)
F(Comm_size, MPI_Comm, int *)
F(Comm_test_inter, MPI_Comm, int *)
F(Errhandler_free, MPI_Errhandler *)
F(Error_string, int, char *, int *)
F(Get_library_version, char *, int *)
F(Grequest_complete, MPI_Request)
F(Grequest_start, MPI_Grequest_query_function *, MPI_Grequest_free_function *,
  MPI_Grequest_cancel_function *, void *, MPI_Request *)
F(Group_free, MPI_Group *)
F(Group_size, MPI_Group, int *)
F(Group_translate_ranks, MPI_Group, int, const int *, MPI_Group, int *)
F(Imrecv, void *, int, MPI_Datatype, MPI_Message *, MPI_Request *)
F(Irecv, void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *)
F(Irsend, const void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *)
F(Isend, const void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *)
F(Issend, const void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *)
F(Op_commutative, MPI_Op, int *)
F(Pack, const void *, int, MPI_Datatype, void *, int, int *, MPI_Comm)
F(Query_thread, int *)
F(Reduce_local, const void *, void *, int, MPI_Datatype, MPI_Op)
F(Status_set_cancelled, MPI_Status *, int)
F(Status_set_elements, MPI_Status *, MPI_Datatype, int)
F(Type_commit, MPI_Datatype *)
F(Type_contiguous, int, MPI_Datatype, MPI_Datatype *)
F(Type_create_struct, int, const int *, const MPI_Aint *, const MPI_Datatype *,
  MPI_Datatype *)
F(Type_get_contents, MPI_Datatype, int, int, int, int *, MPI_Aint *, MPI_Datatype *)
F(Type_get_envelope, MPI_Datatype, int *, int *, int *, int *)
F(Type_get_extent, MPI_Datatype, MPI_Aint *, MPI_Aint *)
F(Type_size, MPI_Datatype, int *)
F(Type_size_x, MPI_Datatype, MPI_Count *)
F(Unpack, const void *, int, int *, void *, int, MPI_Datatype, MPI_Comm)
/* clang-format on */
#undef F
#undef FORMS
#undef SUM
#undef SUMS
#undef SUM_TO
#undef ONE
#undef ALL
#undef ALL_TO
#undef TO_BLOCKS
#undef ALLGATHERV
#undef GATHERV
#undef SCATTERV
#undef ALLTOALLV

#endif
