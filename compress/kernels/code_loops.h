/* SPDX-License-Identifier: BSD-3-Clause */
/* The codecs' inner loops and the table of them; included once by each code_<isa>.c, which is
 * compiled for that instruction set, has included code_base.h and defined what it asks for, and
 *   TABLE, TABLE_NAME   the table's symbol and name
 *   FWHT                defined: fwht() is there already
 * Most loops are plain C, of which the compiler makes vectors with the same bits by definition.
 */
#include "compress/kernels/code_values.h"

#include "compress/kernels/code_bits.h"
#include "compress/kernels/code_block.h"
#include "compress/kernels/code_select.h"

#define FORMAT(NAME)                                                                           \
    {                                                                                          \
        .encode = encode_##NAME, .decode = decode_##NAME, .decode_add = decode_add_##NAME      \
    }
const struct bny_code_kernels TABLE = {
    .name = TABLE_NAME,
    .absmax = absmax,
    .compensate = compensate,
    .residual = residual,
    .moments = moments,
    .select16 = select16,
    .select32 = select32,
    .indexes_ok16 = indexes_ok16,
    .indexes_ok32 = indexes_ok32,
    .scatter16 = scatter16,
    .scatter32 = scatter32,
    .scatter_add16 = scatter_add16,
    .scatter_add32 = scatter_add32,
    .gather32 = gather32,
    .pack = { NULL, pack1, pack2, pack3, pack4, pack5, pack6, pack7, pack8 },
    .unpack = { NULL, unpack1, unpack2, unpack3, unpack4, unpack5, unpack6, unpack7, unpack8 },
    .fwht = fwht,
    .flip = flip,
    .random = random_bits,
    .l1 = l1,
    .sign_encode = sign_encode,
    .sign_decode = sign_decode,
    .sign_decode_add = sign_decode_add,
    .format = {
        [BNY_INT8] = FORMAT(int8),
        [BNY_INT4] = FORMAT(int4),
        [BNY_E4M3] = FORMAT(e4m3),
        [BNY_E5M2] = FORMAT(e5m2),
        [BNY_E2M1] = FORMAT(e2m1),
    },
    .mx = { [BNY_E4M3] = FORMAT(mx8), [BNY_E2M1] = FORMAT(mx4) },
};
#undef FORMAT
