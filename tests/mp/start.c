/* SPDX-License-Identifier: BSD-3-Clause */
/* One rank of test_start.py's jobs: joins, then meets the others until its time is over.
 * Usage: start SECONDS [RANK:NAME=VALUE...]; on that rank NAME is set in the environment, or,
 * for "files" and "memory", how many descriptors and KiB it may have besides what it has.
 * Prints one line, in one piece: "init CODE SENTENCE" or "call CODE SENTENCE" of a failure,
 * "well". The exit status is 7 when one of descriptors 0 to 2 is not what it was. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <banyan/banyan.h>

static double now_s(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static int say(const char *when, int rc)
{
    char line[700];
    int len = snprintf(line, sizeof line, "%s %d %s\n", when, -rc, banyan_last_error());

    return write(1, line, (size_t)len) == len ? 3 : 5;
}

static rlim_t files_open(void)
{
    DIR *d = opendir("/proc/self/fd");
    rlim_t n = 0;

    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n - 3; /* ".", "..", and the folder's own */
}

static rlim_t bytes_mapped(void)
{
    FILE *f = fopen("/proc/self/statm", "re");
    unsigned long pages = 0;

    if (f) {
        if (fscanf(f, "%lu", &pages) != 1)
            pages = 0;
        fclose(f);
    }
    return (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE);
}

/* "3:files=7" */
static void suffer(char *spec)
{
    const char *rank = getenv("BANYAN_RANK");
    char *name = strchr(spec, ':') + 1, *value = strchr(name, '=') + 1;
    struct rlimit most;

    if (!rank || atoi(rank) != atoi(spec))
        return;
    value[-1] = '\0';
    if (!strcmp(name, "files")) {
        most.rlim_cur = most.rlim_max = files_open() + (rlim_t)atoi(value);
        setrlimit(RLIMIT_NOFILE, &most);
    } else if (!strcmp(name, "memory")) {
        most.rlim_cur = most.rlim_max = bytes_mapped() + ((rlim_t)atoi(value) << 10);
        setrlimit(RLIMIT_AS, &most);
    } else {
        setenv(name, value, 1);
    }
}

/* Which of descriptors 0 to 2 are open. */
static int standard_files(void)
{
    int open = 0;

    for (int fd = 0; fd < 3; fd++)
        open |= (fcntl(fd, F_GETFD) >= 0) << fd;
    return open;
}

int main(int argc, char **argv)
{
    double end = now_s() + (argc > 1 ? atof(argv[1]) : 0);
    struct banyan_comm *comm;
    float one = 1, sum = 0, over;
    int rc, wrong, files = standard_files();

    for (int i = 2; i < argc; i++)
        suffer(argv[i]);
    rc = banyan_comm_init_env(&comm, NULL);
    if (rc)
        return say("init", rc);
    do {
        /* Ranks stop together: when the last one's time is over. */
        over = now_s() < end ? 0 : 1;
        rc = banyan_allreduce(&over, &sum, 1, BANYAN_F32, BANYAN_MIN, comm, NULL);
    } while (rc == 0 && sum == 0);
    if (rc == 0)
        rc = banyan_allreduce(&one, &sum, 1, BANYAN_F32, BANYAN_SUM, comm, NULL);
    if (rc) {
        wrong = say("call", rc);
        banyan_comm_destroy(comm); /* says that its going is no other death */
        return wrong;
    }
    if (standard_files() != files)
        return 7;
    wrong = (int)sum != banyan_comm_count(comm);
    rc = banyan_comm_finalize(comm);
    if (rc)
        return say("call", rc);
    return wrong || write(1, "well\n", 5) != 5 ? 6 : 0;
}
