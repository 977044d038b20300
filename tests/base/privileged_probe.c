/* SPDX-License-Identifier: BSD-3-Clause */
/* What a program takes from its environment; test_privileged runs it with its caller's rights
 * and with more. */
#include <stdio.h>
#include <unistd.h>

#include "banyan/banyan.h"
#include "base/param.h"
#include "base/privileged.h"
#include "topo/machine.h"
#include "transport/bootstrap/bootstrap.h"
#include "transport/bootstrap/launch.h"

int main(void)
{
    struct bny_launch launch;
    struct bny_machine *m = NULL;
    int rc;

    dup2(1, 2);
    printf("privileged %d\n", bny_privileged());
    printf("args %s\n", bny_param_str("BANYAN_DPDK_ARGS"));
    printf("mtu %d\n", (int)bny_param_int("BANYAN_DPDK=mtu"));
    printf("check %d\n", bny_param_check());
    rc = bny_launch_env(&launch, NULL, NULL, 0);
    printf("launch %s\n", rc ? banyan_last_error() : launch.how);
    rc = bny_machine_live(&m);
    printf("machine %s\n", rc ? banyan_last_error() : "read");
    bny_machine_free(m);
    return 0;
}
