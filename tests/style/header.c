/* SPDX-License-Identifier: BSD-3-Clause */
/* Compiled as C11 and as C++17: the public headers need nothing before them and can be included
 * twice. */
#include <banyan/methods.h>
#include <banyan/training.h>
#include <banyan/objects.h>
#include <banyan/extend.h>
#include <banyan/banyan.h>
#include <banyan/extend.h>
#include <banyan/objects.h>
#include <banyan/training.h>
#include <banyan/methods.h>

int main(void);

int main(void)
{
    struct banyan_opts opts = BANYAN_OPTS_INIT;
    struct banyan_id id = { { 0 } };

    return (int)opts.tag + id.bytes[0];
}
