/* SPDX-License-Identifier: BSD-3-Clause */
/* srun without PMI: rank 0 is on the first host of the step; the port follows from the step's
 * number. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "transport/bootstrap/launch.h"

int bny_slurm_first_host(const char *list, char *out, size_t cap)
{
    size_t head = strcspn(list, "[,"), digits;
    const char *number = list + head + 1, *tail;

    if (list[head] != '[') {
        if (head == 0 || head >= cap)
            return -1;
        memcpy(out, list, head);
        out[head] = '\0';
        return 0;
    }
    /* "node[03-05,7]-ib": the first number with its zeroes, and the text after the bracket. */
    digits = strspn(number, "0123456789");
    tail = strchr(number, ']');
    if (digits == 0 || !tail || !strchr("-,]", number[digits]))
        return -1;
    tail++;
    if (strchr(tail, '[') && strchr(tail, '[') < tail + strcspn(tail, ",")) /* r[1-2]n[3-4] */
        return snprintf(out, cap, "%.*s%.*s", (int)head, list, (int)digits, number) < (int)cap
                   ? bny_slurm_first_host(tail, out + strlen(out), cap - strlen(out))
                   : -1;
    if (head + digits + strcspn(tail, ",") >= cap)
        return -1;
    snprintf(out, cap, "%.*s%.*s%.*s", (int)head, list, (int)digits, number,
             (int)strcspn(tail, ","), tail);
    return 0;
}

static const char *either(const char *name, const char *older)
{
    const char *text = bny_launch_get(name);

    return text ? text : bny_launch_get(older);
}

int bny_launch_slurm(struct bny_launch *out, const struct bny_launch_in *in)
{
    static const char remedy[] =
        "srun sets SLURM_PROCID, SLURM_NTASKS, SLURM_JOB_ID, SLURM_STEP_ID and "
        "SLURM_STEP_NODELIST: start the ranks with srun";
    const char *size =
        bny_launch_get("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
    const char *nodes = either("SLURM_STEP_NODELIST", "SLURM_NODELIST");
    const char *jobid = either("SLURM_JOB_ID", "SLURM_JOBID");
    const char *step = either("SLURM_STEP_ID", "SLURM_STEPID");
    char job[200], host[256];
    int rc;

    if (!bny_launch_get("SLURM_PROCID"))
        return 0;
    out->how = "slurm";
    rc = bny_launch_ranks("SLURM_PROCID", size, remedy, out);
    if (rc != 0)
        return rc;
    if (out->nranks > 1 && !nodes)
        return bny_fail(BANYAN_ECONFIG, "SLURM_STEP_NODELIST is not set; %s", remedy);
    if (out->nranks > 1 && !jobid)
        return bny_fail(BANYAN_ECONFIG, "SLURM_JOB_ID is not set; %s", remedy);
    if (out->nranks > 1 && !step)
        return bny_fail(BANYAN_ECONFIG,
                        "SLURM_STEP_ID is not set while %s=%d: this process runs in the batch "
                        "script itself, alone; %s",
                        size, out->nranks, remedy);
    if (out->nranks > 1 && bny_slurm_first_host(nodes, host, sizeof host) != 0)
        return bny_fail(BANYAN_ECONFIG,
                        "SLURM_STEP_NODELIST=%.100s is not a node list such as "
                        "node[03-05,7]; %s",
                        nodes, remedy);
    snprintf(job, sizeof job, "slurm %.60s %.60s", jobid ? jobid : "", step ? step : "");
    /* The kernel assigns no ports below 32768 by itself (ip_local_port_range's default). */
    rc = bny_launch_derive(out, in, job, host, 20000 + (int)(bny_launch_hash(job) % 12000),
                           BNY_LAUNCH_SPAN);
    return rc == 0 ? 1 : rc;
}
