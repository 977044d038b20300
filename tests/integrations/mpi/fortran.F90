! SPDX-License-Identifier: BSD-3-Clause
! Collectives from Fortran: kinds, pairs, complex, logical, MPI_IN_PLACE, MPI_BOTTOM, an operation of the user's, and
! non-blocking calls. Every result is checked; rank 0 prints "ok". Built with the module (use mpi) and, with -DMPIF_H,
! with the header, whose calls have no interfaces.
program collectives
#ifndef MPIF_H
    use mpi
#endif
    implicit none
#ifdef MPIF_H
    include 'mpif.h'
#endif
    integer, parameter :: many = 5000
    integer :: rank, n, err, i, calls
    external :: twice

    call MPI_Init(err)
    call MPI_Comm_rank(MPI_COMM_WORLD, rank, err)
    call MPI_Comm_size(MPI_COMM_WORLD, n, err)
    calls = 0
    call kinds()
    call pairs()
    call complex_and_logical()
    call places()
    call users_operation()
    call moves()
    call non_blocking()
    call errors()
    if (rank == 0) print '(a,i0,a)', 'ok ', calls, ' checks'
    call MPI_Finalize(err)

contains

    subroutine check(good, what)
        logical, intent(in) :: good
        character(*), intent(in) :: what

        calls = calls + 1
        if (good) return
        print '(a,i0,2a)', 'rank ', rank, ': wrong: ', what
        call MPI_Abort(MPI_COMM_WORLD, 1, err)
    end subroutine

    integer function total() ! of the ranks' numbers, counted from 1
        total = n * (n + 1) / 2
    end function

    subroutine kinds()
        integer :: a(many), b(many)
        integer(1) :: a1(5), b1(5)
        integer(2) :: a2(5), b2(5)
        integer(4) :: a4(5), b4(5)
        integer(8) :: a8(5), b8(5)
        real :: x(many), y(many)
        real(4) :: x4(3), y4(3)
        real(8) :: x8(3), y8(3)
        double precision :: d(many), e(many)

        a = [(i * (rank + 1), i = 1, many)]
        call MPI_Allreduce(a, b, many, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, err)
        call check(all(b == [(i * total(), i = 1, many)]), 'sum of MPI_INTEGER')
        call MPI_Allreduce(a, b, many, MPI_INTEGER, MPI_BXOR, MPI_COMM_WORLD, err)
        call check(b(1) == xors(), 'xor of MPI_INTEGER')
        a1 = int(rank + 1, 1)
        call MPI_Allreduce(a1, b1, 5, MPI_INTEGER1, MPI_MAX, MPI_COMM_WORLD, err)
        call check(all(b1 == n), 'max of MPI_INTEGER1')
        a2 = int(-1000 * (rank + 1), 2)
        call MPI_Allreduce(a2, b2, 5, MPI_INTEGER2, MPI_SUM, MPI_COMM_WORLD, err)
        call check(all(b2 == -1000 * total()), 'sum of MPI_INTEGER2')
        a4 = rank + 2
        call MPI_Allreduce(a4, b4, 5, MPI_INTEGER4, MPI_PROD, MPI_COMM_WORLD, err)
        call check(all(b4 == product([(i + 2, i = 0, n - 1)])), 'product of MPI_INTEGER4')
        a8 = 3000000000_8 * (rank + 1)
        call MPI_Allreduce(a8, b8, 5, MPI_INTEGER8, MPI_SUM, MPI_COMM_WORLD, err)
        call check(all(b8 == 3000000000_8 * total()), 'sum of MPI_INTEGER8')
        call MPI_Allreduce(a8, b8, 5, MPI_INTEGER8, MPI_MIN, MPI_COMM_WORLD, err)
        call check(all(b8 == 3000000000_8), 'min of MPI_INTEGER8')
        x = real([(mod(i, 100) + rank, i = 1, many)])
        call MPI_Allreduce(x, y, many, MPI_REAL, MPI_SUM, MPI_COMM_WORLD, err)
        call check(all(y == real([(n * mod(i, 100) + total() - n, i = 1, many)])), 'sum of MPI_REAL')
        x4 = 0.5 * (rank + 1)
        call MPI_Allreduce(x4, y4, 3, MPI_REAL4, MPI_SUM, MPI_COMM_WORLD, err)
        call check(all(y4 == 0.5 * total()), 'sum of MPI_REAL4')
        x8 = 0.25d0 * (rank + 1)
        call MPI_Allreduce(x8, y8, 3, MPI_REAL8, MPI_MAX, MPI_COMM_WORLD, err)
        call check(all(y8 == 0.25d0 * n), 'max of MPI_REAL8')
        d = rank + 1
        call MPI_Reduce(d, e, many, MPI_DOUBLE_PRECISION, MPI_SUM, n - 1, MPI_COMM_WORLD, err)
        call check(rank /= n - 1 .or. all(e == total()), 'reduce of MPI_DOUBLE_PRECISION')
        call MPI_Scan(a4, b4, 5, MPI_INTEGER4, MPI_SUM, MPI_COMM_WORLD, err)
        call check(all(b4 == sum([(i + 2, i = 0, rank)])), 'scan')
        call MPI_Exscan(a4, b4, 5, MPI_INTEGER4, MPI_SUM, MPI_COMM_WORLD, err)
        call check(rank == 0 .or. all(b4 == sum([(i + 2, i = 0, rank - 1)])), 'exscan')
    end subroutine

    integer function xors()
        xors = 0
        do i = 1, n
            xors = ieor(xors, i)
        end do
    end function

    ! Value and index; of equal values the smallest index.
    subroutine pairs()
        integer :: a(2, 3), b(2, 3)
        real :: x(2, 3), y(2, 3)
        double precision :: d(2, 3), e(2, 3)

        a(1, :) = [rank, -rank, 7]
        a(2, :) = rank + 10
        call MPI_Allreduce(a, b, 3, MPI_2INTEGER, MPI_MAXLOC, MPI_COMM_WORLD, err)
        call check(all(b(1, :) == [n - 1, 0, 7]) .and. all(b(2, :) == [n + 9, 10, 10]), 'maxloc of MPI_2INTEGER')
        call MPI_Allreduce(a, b, 3, MPI_2INTEGER, MPI_MINLOC, MPI_COMM_WORLD, err)
        call check(all(b(1, :) == [0, 1 - n, 7]) .and. all(b(2, :) == [10, n + 9, 10]), 'minloc of MPI_2INTEGER')
        x = real(a)
        call MPI_Allreduce(x, y, 3, MPI_2REAL, MPI_MAXLOC, MPI_COMM_WORLD, err)
        call check(all(y(1, :) == [n - 1, 0, 7]) .and. all(y(2, :) == [n + 9, 10, 10]), 'maxloc of MPI_2REAL')
        d = a
        call MPI_Allreduce(d, e, 3, MPI_2DOUBLE_PRECISION, MPI_MINLOC, MPI_COMM_WORLD, err)
        call check(all(e(1, :) == [0, 1 - n, 7]) .and. all(e(2, :) == [10, n + 9, 10]), &
                   'minloc of MPI_2DOUBLE_PRECISION')
    end subroutine

    subroutine complex_and_logical()
        complex :: c(many), s(many)
        double complex :: z(2), w(2)
        logical :: p(3), q(3)

        c = cmplx(rank + 1, -rank)
        call MPI_Allreduce(c, s, many, MPI_COMPLEX, MPI_SUM, MPI_COMM_WORLD, err)
        call check(all(s == cmplx(total(), n - total())), 'sum of MPI_COMPLEX')
        z = (0d0, 1d0)
        call MPI_Allreduce(z, w, 2, MPI_DOUBLE_COMPLEX, MPI_PROD, MPI_COMM_WORLD, err)
        call check(all(w == (0d0, 1d0)**n), 'product of MPI_DOUBLE_COMPLEX')
        p = [.true., rank == 0, .false.]
        call MPI_Allreduce(p, q, 3, MPI_LOGICAL, MPI_LAND, MPI_COMM_WORLD, err)
        call check(all(q .eqv. [.true., n == 1, .false.]), 'land')
        call MPI_Allreduce(p, q, 3, MPI_LOGICAL, MPI_LOR, MPI_COMM_WORLD, err)
        call check(all(q .eqv. [.true., .true., .false.]), 'lor')
        call MPI_Allreduce(p, q, 3, MPI_LOGICAL, MPI_LXOR, MPI_COMM_WORLD, err)
        call check(all(q .eqv. [mod(n, 2) == 1, .true., .false.]), 'lxor')
    end subroutine

    ! The constants that are addresses.
    subroutine places()
        integer, target :: a(many), all_of(many)
        integer :: type, lengths(2)
        integer(MPI_ADDRESS_KIND) :: at(2)

        a = rank + 1
        call MPI_Allreduce(MPI_IN_PLACE, a, many, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, err)
        call check(all(a == total()), 'MPI_IN_PLACE in allreduce')
        all_of = -1
        all_of(rank + 1) = rank
        call MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, all_of, 1, MPI_INTEGER, MPI_COMM_WORLD, err)
        call check(all(all_of(:n) == [(i, i = 0, n - 1)]) .and. all_of(n + 1) == -1, 'MPI_IN_PLACE in allgather')
        if (rank == 0) then
            call MPI_Reduce(MPI_IN_PLACE, a, many, MPI_INTEGER, MPI_MAX, 0, MPI_COMM_WORLD, err)
        else
            call MPI_Reduce(a, all_of, many, MPI_INTEGER, MPI_MAX, 0, MPI_COMM_WORLD, err)
        end if
        call check(all(a == total()), 'MPI_IN_PLACE in reduce')
        a = rank
        all_of = rank
        call MPI_Get_address(a(3), at(1), err)
        call MPI_Get_address(all_of(5), at(2), err)
        lengths = [many - 2, 1]
        call MPI_Type_create_hindexed(2, lengths, at, MPI_INTEGER, type, err)
        call MPI_Type_commit(type, err)
        call MPI_Bcast(MPI_BOTTOM, 1, type, n - 1, MPI_COMM_WORLD, err)
        call check(all(a(3:) == n - 1) .and. a(2) == rank, 'MPI_BOTTOM in bcast')
        call check(all_of(5) == n - 1 .and. all_of(4) == rank .and. all_of(6) == rank, 'MPI_BOTTOM in bcast')
        call MPI_Type_free(type, err)
    end subroutine

    subroutine users_operation()
        integer :: op, a(7), b(7), want

        call MPI_Op_create(twice, .false., op, err)
        a = rank + 1
        call MPI_Allreduce(a, b, 7, MPI_INTEGER, op, MPI_COMM_WORLD, err)
        want = n
        do i = n - 1, 1, -1
            want = mod(i + 2 * want, 1000003)
        end do
        ! Without associativity several results are legal; all ranks have the same one, and 2 ranks have no choice.
        call check(all(b == b(1)) .and. (n > 2 .or. b(1) == want), 'operation of the user')
        a(1) = b(1)
        call MPI_Bcast(a, 1, MPI_INTEGER, 0, MPI_COMM_WORLD, err)
        call check(a(1) == b(1), 'operation of the user: ranks differ')
        call MPI_Op_free(op, err)
    end subroutine

    subroutine moves()
        integer :: a(many), b(many), counts(n), at(n)
        double precision :: d(n), e(n)
        character(8) :: name

        counts = [(i, i = 1, n)]
        at = [(i * (i - 1) / 2, i = 1, n)]
        a = rank + 1
        b = 0
        call MPI_Gatherv(a, rank + 1, MPI_INTEGER, b, counts, at, MPI_INTEGER, 0, MPI_COMM_WORLD, err)
        call check(rank /= 0 .or. (b(total()) == n .and. sum(b) == sum([(i * i, i = 1, n)])), 'gatherv')
        call MPI_Scatterv(b, counts, at, MPI_INTEGER, a, rank + 1, MPI_INTEGER, 0, MPI_COMM_WORLD, err)
        call check(all(a(:rank + 1) == rank + 1), 'scatterv')
        d = [(100 * rank + i, i = 1, n)]
        call MPI_Alltoall(d, 1, MPI_DOUBLE_PRECISION, e, 1, MPI_DOUBLE_PRECISION, MPI_COMM_WORLD, err)
        call check(all(e == [(100 * i + rank + 1, i = 0, n - 1)]), 'alltoall')
        call MPI_Reduce_scatter_block(d, e, 1, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, err)
        call check(e(1) == 100 * (total() - n) + n * (rank + 1), 'reduce_scatter_block')
        name = 'none'
        if (rank == n - 1) name = 'banyan'
        call MPI_Bcast(name, 8, MPI_CHARACTER, n - 1, MPI_COMM_WORLD, err)
        call check(name == 'banyan', 'bcast of MPI_CHARACTER')
        call MPI_Barrier(MPI_COMM_WORLD, err)
    end subroutine

    subroutine non_blocking()
        integer, asynchronous :: a(many), b(many), c(many)
        double precision, asynchronous :: d(many), e(many)
        integer :: requests(4), comm, half

        call MPI_Comm_split(MPI_COMM_WORLD, mod(rank, 2), rank, comm, err)
        a = rank + 1
        c = rank
        d = 0.5d0
        call MPI_Iallreduce(a, b, many, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, requests(1), err)
        call MPI_Ibcast(c, many, MPI_INTEGER, 0, MPI_COMM_WORLD, requests(2), err)
        call MPI_Ireduce(d, e, many, MPI_DOUBLE_PRECISION, MPI_SUM, 0, comm, requests(3), err)
        call MPI_Ibarrier(MPI_COMM_WORLD, requests(4), err)
        call MPI_Waitall(4, requests, MPI_STATUSES_IGNORE, err)
        call check(all(requests == MPI_REQUEST_NULL), 'requests after waitall')
        call check(all(b == total()) .and. all(c == 0), 'iallreduce, ibcast')
        half = (n + 1 - mod(rank, 2)) / 2
        call check(rank > 1 .or. all(e == 0.5d0 * half), 'ireduce')
        call MPI_Comm_free(comm, err)
    end subroutine

    ! MPI_ERRORS_RETURN gives an error code to Fortran too.
    subroutine errors()
        integer :: a(1), code

        call MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN, err)
        call MPI_Bcast(a, 1, MPI_INTEGER, n, MPI_COMM_WORLD, code)
        call check(code /= MPI_SUCCESS, 'a root that does not exist')
        call MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL, err)
    end subroutine
end program

! inout = in + 2 inout: neither commutative nor associative.
subroutine twice(a, b, count, type)
    implicit none
    integer :: count, type
    integer :: a(count), b(count)

    b = mod(a + 2 * b, 1000003)
end subroutine
