/* SPDX-License-Identifier: BSD-3-Clause */
/* Every MPI function that the interposer replaces, each name once, without its prefix.
 * choose.c makes a jump for each, real.c looks each up in the MPI library. Functions that only
 * one of the MPIs has may be here as well. */
#ifndef BNY_MPI_NAMES_H
#define BNY_MPI_NAMES_H

/* Lists with as many names a line as fit. */
/* clang-format off */
#define BNY_MPI_LIFE(X) \
    X(Init) X(Init_thread) X(Finalize) X(Op_free) X(Type_free) X(Comm_disconnect) X(Comm_idup)

/* Collectives that run on banyan, and their non-blocking forms. */
#define BNY_MPI_COLLECTIVES(X) \
    X(Allreduce) X(Reduce) X(Bcast) X(Reduce_scatter) X(Reduce_scatter_block) X(Allgather) \
    X(Allgatherv) X(Gather) X(Gatherv) X(Scatter) X(Scatterv) X(Alltoall) X(Alltoallv) \
    X(Barrier) X(Scan) X(Exscan) X(Iallreduce) X(Ireduce) X(Ibcast) X(Ireduce_scatter) \
    X(Ireduce_scatter_block) X(Iallgather) X(Iallgatherv) X(Igather) X(Igatherv) \
    X(Iscatter) X(Iscatterv) X(Ialltoall) X(Ialltoallv) X(Ibarrier) X(Iscan) X(Iexscan)

/* Point to point and completion: loops that progress both while something of ours flies, else
 * choose.c's jumps go to the MPI library's own functions, past the interposer. */
#define BNY_MPI_STRAIGHT(X) \
    X(Wait) X(Waitall) X(Waitany) X(Waitsome) X(Test) X(Testall) X(Testany) X(Testsome) \
    X(Request_get_status) X(Send) X(Ssend) X(Rsend) X(Recv) X(Sendrecv) X(Probe) X(Mprobe) \
    X(Mrecv) X(Iprobe) X(Improbe)
#define BNY_MPI_REQUESTS(X) \
    BNY_MPI_STRAIGHT(X) X(Win_test) X(Start) X(Startall) X(Request_free)

/* Other calls that may block: a thread progresses what is in flight meanwhile. guarded.c has
 * their arguments. */
#define BNY_MPI_GUARDED(X) \
    X(Sendrecv_replace) X(Bsend) X(Buffer_detach) X(Alltoallw) X(Neighbor_allgather) \
    X(Neighbor_allgatherv) X(Neighbor_alltoall) X(Neighbor_alltoallv) \
    X(Neighbor_alltoallw) X(Comm_dup) X(Comm_dup_with_info) X(Comm_split) \
    X(Comm_split_type) X(Comm_create) X(Comm_create_group) X(Comm_free) \
    X(Intercomm_create) X(Intercomm_merge) X(Comm_accept) X(Comm_connect) X(Comm_join) \
    X(Comm_spawn) X(Comm_spawn_multiple) X(Cart_create) X(Cart_sub) X(Graph_create) \
    X(Dist_graph_create) X(Dist_graph_create_adjacent) X(Win_create) X(Win_allocate) \
    X(Win_allocate_shared) X(Win_create_dynamic) X(Win_free) X(Win_fence) X(Win_complete) \
    X(Win_wait) X(Win_start) X(Win_lock) X(Win_lock_all) X(Win_unlock) X(Win_unlock_all) \
    X(Win_flush) X(Win_flush_all) X(File_open) X(File_close) X(File_set_size) \
    X(File_preallocate) X(File_set_view) X(File_sync) X(File_read_all) X(File_write_all) \
    X(File_read_at_all) X(File_write_at_all) X(File_read_ordered) X(File_write_ordered) \
    X(File_read_all_end) X(File_write_all_end) X(File_read_at_all_end) \
    X(File_write_at_all_end) X(File_read_ordered_end) X(File_write_ordered_end) \
    X(File_seek_shared)

/* MPI-4's persistent collectives, of MPICH 4 and Open MPI 5; Open MPI 4 has them as MPIX_...
 * Offered as large counts are. */
#define BNY_MPI_PERSISTENT(X) \
    X(Allreduce_init) X(Reduce_init) X(Reduce_scatter_block_init) X(Bcast_init) \
    X(Allgather_init) X(Alltoall_init) X(Gather_init) X(Scatter_init)

/* MPI-4's ways to a communicator that Open MPI 4 has not. Offered as large counts are. */
#define BNY_MPI_SESSIONS(X) \
    X(Comm_create_from_group) X(Intercomm_create_from_groups) X(Comm_idup_with_info)

/* MPI-4's large counts: MPICH 4 has them, Open MPI 4 does not. Programs ask the dynamic linker
 * whether they are there (mpi4py's wheels), so choose.c offers what the MPI library has. */
#define BNY_MPI_LARGE(X) \
    X(Allreduce_c) X(Reduce_c) X(Bcast_c) X(Reduce_scatter_c) X(Reduce_scatter_block_c) \
    X(Allgather_c) X(Allgatherv_c) X(Gather_c) X(Gatherv_c) X(Scatter_c) X(Scatterv_c) \
    X(Alltoall_c) X(Alltoallv_c) X(Scan_c) X(Exscan_c) X(Iallreduce_c) X(Ireduce_c) \
    X(Ibcast_c) X(Ireduce_scatter_c) X(Ireduce_scatter_block_c) X(Iallgather_c) \
    X(Iallgatherv_c) X(Igather_c) X(Igatherv_c) X(Iscatter_c) X(Iscatterv_c) \
    X(Ialltoall_c) X(Ialltoallv_c) X(Iscan_c) X(Iexscan_c) \
    X(Win_create_c) X(Win_allocate_c) X(Win_allocate_shared_c)

/* Further functions of the MPI library, which the interposers themselves call. Not replaced. */
#define BNY_MPI_ASKED(X) \
    X(Abort) X(Add_error_class) X(Add_error_code) X(Add_error_string) \
    X(Comm_call_errhandler) X(Comm_create_keyval) X(Comm_delete_attr) X(Comm_free_keyval) \
    X(Comm_get_attr) X(Comm_get_errhandler) X(Comm_group) X(Comm_rank) X(Comm_set_attr) \
    X(Comm_set_errhandler) X(Comm_size) X(Comm_test_inter) X(Errhandler_free) \
    X(Error_string) X(Get_library_version) X(Grequest_complete) X(Grequest_start) \
    X(Group_free) X(Group_size) X(Group_translate_ranks) X(Imrecv) X(Irecv) X(Irsend) \
    X(Isend) X(Issend) X(Op_commutative) X(Pack) X(Query_thread) X(Recv_init) \
    X(Reduce_local) \
    X(Status_set_cancelled) X(Status_set_elements) X(Type_commit) X(Type_contiguous) \
    X(Type_create_struct) X(Type_get_contents) X(Type_get_envelope) X(Type_get_extent) \
    X(Type_size) X(Type_size_x) X(Unpack)

#define BNY_MPI_COMMON(X) \
    BNY_MPI_LIFE(X) BNY_MPI_COLLECTIVES(X) BNY_MPI_REQUESTS(X) BNY_MPI_GUARDED(X)

/* clang-format on */
#endif
