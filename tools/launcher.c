/* SPDX-License-Identifier: BSD-3-Clause */
/* Launchers of other projects: how each is told hosts, numbers, variables and output. */
#include "tools/launcher.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HOSTS_MAX 4096
#define SLOTS_MAX 65536

extern char **environ;

struct hosts {
    char text[65536];  /* "a:4,b:1" */
    char names[65536]; /* "a,b" */
    int count, slots;
    int is_even; /* all have as many */
    int first;   /* slots of the first */
};

struct words {
    char **list;
    int count, cap;
    int lacks_memory;
};

/* Takes over text, which is malloced. */
static void add_own(struct words *w, char *text)
{
    if (text && w->count + 2 > w->cap) {
        int cap = 2 * w->cap + 16;
        char **more = realloc(w->list, (size_t)cap * sizeof *more);

        if (!more) {
            free(text);
            text = NULL;
        } else {
            w->list = more;
            w->cap = cap;
        }
    }
    if (!text) {
        w->lacks_memory = 1;
        return;
    }
    w->list[w->count++] = text;
    w->list[w->count] = NULL;
}

static void add(struct words *w, const char *text)
{
    add_own(w, strdup(text));
}

__attribute__((format(printf, 2, 3))) static void add_text(struct words *w, const char *fmt,
                                                           ...)
{
    char *text = NULL;
    va_list ap;

    va_start(ap, fmt);
    if (vasprintf(&text, fmt, ap) < 0)
        text = NULL;
    va_end(ap);
    add_own(w, text);
}

static void add_number(struct words *w, const char *option, int number)
{
    add(w, option);
    add_text(w, "%d", number);
}

/* ---- hosts ---- */

/* One host, as "a", "a:4" or "a slots=4"; IPv6 addresses in brackets. 0, or -1 after a
 * message. */
static int take_host(struct hosts *h, char *text)
{
    char *name = text, *number = NULL, *end, *colon = strrchr(text, ':'),
         *bracket = strrchr(text, ']'), *slots = strstr(text, "slots=");
    size_t at = strlen(h->text), names = strlen(h->names);
    long n = 1;

    if (slots) {
        number = slots + 6;
        name[strcspn(name, " \t")] = '\0';
    } else if (colon && colon > bracket) {
        *colon = '\0';
        number = colon + 1;
    }
    if (number) {
        n = strtol(number, &end, 10);
        if (end == number || end[strspn(end, " \t\r")] || n < 1 || n > SLOTS_MAX) {
            fprintf(stderr, "banyan_run: host %s: \"%s\" is no number of ranks\n", name,
                    number);
            return -1;
        }
    }
    if (!*name || name[strcspn(name, " \t\r")] || *name == '-') {
        fprintf(stderr, "banyan_run: \"%s\" is no host: write a:4 or a slots=4\n", name);
        return -1;
    }
    if (++h->count > HOSTS_MAX || at + strlen(name) + 24 > sizeof h->text) {
        fprintf(stderr, "banyan_run: more than %d hosts, or too long names\n", HOSTS_MAX);
        return -1;
    }
    snprintf(h->text + at, sizeof h->text - at, "%s%s:%ld", at ? "," : "", name, n);
    snprintf(h->names + names, sizeof h->names - names, "%s%s", names ? "," : "", name);
    h->first = h->count == 1 ? (int)n : h->first;
    h->is_even = (h->count == 1 || h->is_even) && n == h->first;
    h->slots += (int)n;
    return 0;
}

static int take_list(struct hosts *h, const char *list)
{
    char *copy = strdup(list), *at, *part;
    int rc = copy ? 0 : -1;

    for (part = copy ? strtok_r(copy, ",", &at) : NULL; part && rc == 0;
         part = strtok_r(NULL, ",", &at))
        rc = take_host(h, part);
    free(copy);
    return rc;
}

static int take_file(struct hosts *h, const char *path)
{
    FILE *f = fopen(path, "re");
    char line[1024];
    int rc = 0;

    if (!f) {
        fprintf(stderr, "banyan_run: --hostfile %s: %s\n", path, strerror(errno));
        return -1;
    }
    while (rc == 0 && fgets(line, sizeof line, f)) {
        char *text = line + strspn(line, " \t");
        size_t len = strcspn(text, "#\r\n");

        while (len && strchr(" \t", text[len - 1]))
            len--;
        text[len] = '\0';
        if (*text)
            rc = take_host(h, text);
    }
    fclose(f);
    return rc;
}

/* ---- what each launcher is told ---- */

/* -x for each variable: those of the library, and the user's own. */
static void add_variables(struct words *w, const struct bny_launcher_job *job)
{
    for (char **e = environ; *e; e++)
        if (!strncmp(*e, "BANYAN_", 7)) {
            add(w, "-x");
            add_own(w, strndup(*e, strcspn(*e, "=")));
        }
    for (int i = 0; i < job->nvariables; i++) {
        add(w, "-x");
        add(w, job->variables[i]);
    }
}

static void say_seconds(struct words *w, const char *option, double seconds)
{
    if (seconds > 0)
        add_number(w, option, seconds < 1 ? 1 : (int)(seconds + .5));
}

/* Open MPI's launchers: prterun since 5, orterun before. */
static void tell_openmpi(struct words *w, const struct bny_launcher_job *job,
                         const struct hosts *h, int is_prte)
{
    add(w, "--host");
    add(w, h->text);
    add_number(w, "-np", job->nranks);
    say_seconds(w, "--timeout", job->timeout_s);
    add_variables(w, job);
    if (is_prte && (job->tag || job->output)) {
        add(w, "--output");
        if (job->output)
            add_text(w, "%sfile=%s", job->tag ? "tag," : "", job->output);
        else
            add(w, "tag");
        return;
    }
    if (job->tag)
        add(w, "--tag-output");
    if (job->output) {
        add(w, "--output-filename");
        add(w, job->output);
    }
}

static void tell_hydra(struct words *w, const struct bny_launcher_job *job,
                       const struct hosts *h)
{
    char seconds[32];

    add(w, "-hosts");
    add(w, h->text);
    if (job->timeout_s > 0) {
        snprintf(seconds, sizeof seconds, "%d", (int)(job->timeout_s + .999));
        setenv("MPIEXEC_TIMEOUT", seconds, 1);
    }
    for (int i = 0; i < job->nvariables; i++) {
        char *value = strchr(job->variables[i], '=');

        if (!value) /* it passes on the whole environment */
            continue;
        add(w, "-genv");
        add_own(w, strndup(job->variables[i], (size_t)(value - job->variables[i])));
        add(w, value + 1);
    }
    if (job->tag)
        add(w, "-prepend-rank");
    if (job->output) {
        add(w, "-outfile-pattern");
        add_text(w, "%s.%%r.out", job->output);
        add(w, "-errfile-pattern");
        add_text(w, "%s.%%r.err", job->output);
    }
    add_number(w, "-n", job->nranks);
}

static void tell_srun(struct words *w, const struct bny_launcher_job *job,
                      const struct hosts *h)
{
    add(w, "--nodelist");
    add(w, h->names);
    add_number(w, "--nodes", h->count);
    add_number(w, "--ntasks", job->nranks);
    add(w, "--input=0");
    if (h->is_even)
        add_number(w, "--ntasks-per-node", h->first);
    if (job->timeout_s > 0)
        add_text(w, "--time=0:%d", (int)(job->timeout_s + .999));
    for (int i = 0; i < job->nvariables; i++) { /* it passes on the whole environment */
        char *value = strchr(job->variables[i], '=');

        if (!value)
            continue;
        *value = '\0';
        setenv(job->variables[i], value + 1, 1);
        *value = '=';
    }
    if (job->tag)
        add(w, "--label");
    if (job->output) {
        add_text(w, "--output=%s.%%t.out", job->output);
        add_text(w, "--error=%s.%%t.err", job->output);
    }
}

enum kind { PRTERUN, HYDRA, ORTERUN, SRUN, KINDS };
static const struct {
    const char *name, *program;
} launchers[KINDS] = {
    [PRTERUN] = { "prterun", "prterun" },
    [HYDRA] = { "hydra", "mpiexec.hydra" },
    [ORTERUN] = { "orterun", "orterun" },
    [SRUN] = { "srun", "srun" },
};

static int is_installed(const char *program)
{
    const char *path = getenv("PATH");
    char at[4096];

    while (path && *path) {
        size_t len = strcspn(path, ":");

        snprintf(at, sizeof at, "%.*s/%s", (int)len, path, program);
        if (access(at, X_OK) == 0)
            return 1;
        path += len + (path[len] == ':');
    }
    return 0;
}

/* KINDS: after a message. Inside an allocation of Slurm that launcher knows the hosts. */
static enum kind choose(const char *name)
{
    if (name) {
        for (enum kind k = 0; k < KINDS; k++)
            if (!strcmp(name, launchers[k].name))
                return k;
        fprintf(stderr, "banyan_run: --launcher %s is none of prterun, hydra, orterun, srun\n",
                name);
        return KINDS;
    }
    if (getenv("SLURM_JOB_ID") && is_installed("srun"))
        return SRUN;
    for (enum kind k = 0; k < SRUN; k++)
        if (is_installed(launchers[k].program))
            return k;
    fprintf(stderr,
            "banyan_run: starting ranks on other hosts takes a launcher: install PRRTE "
            "(prterun), MPICH's hydra (mpiexec.hydra) or Open MPI (orterun), or start the "
            "ranks by hand as docs/hosts.md shows\n");
    return KINDS;
}

int bny_launcher_exec(const struct bny_launcher_job *given, char *const argv[])
{
    struct bny_launcher_job job = *given;
    struct hosts *h = calloc(1, sizeof *h);
    struct words w = { 0 };
    enum kind kind;

    if (!h || (job.hosts && take_list(h, job.hosts) != 0) ||
        (job.hostfile && take_file(h, job.hostfile) != 0) || !h->count) {
        if (h && !h->count)
            fprintf(stderr, "banyan_run: no hosts in %s\n",
                    job.hosts ? "--hosts" : "--hostfile");
        free(h);
        return 2;
    }
    job.nranks = job.nranks ? job.nranks : h->slots;
    if (job.nranks > h->slots) {
        fprintf(stderr,
                "banyan_run: %d ranks are more than the %d of these hosts; write how many each "
                "runs, as in --hosts a:4,b:4\n",
                job.nranks, h->slots);
        free(h);
        return 2;
    }
    kind = choose(job.launcher);
    if (kind == KINDS) {
        free(h);
        return job.launcher ? 2 : 125;
    }
    add(&w, launchers[kind].program);
    if (kind == HYDRA)
        tell_hydra(&w, &job, h);
    else if (kind == SRUN)
        tell_srun(&w, &job, h);
    else
        tell_openmpi(&w, &job, h, kind == PRTERUN);
    for (int i = 0; argv[i]; i++)
        add(&w, argv[i]);
    free(h);
    if (w.lacks_memory) {
        fprintf(stderr, "banyan_run: no memory\n");
        return 125;
    }
    execvp(w.list[0], w.list);
    fprintf(stderr, "banyan_run: %s: %s\n", w.list[0], strerror(errno));
    return 125;
}
