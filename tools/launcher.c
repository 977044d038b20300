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
    int slots_of[HOSTS_MAX];
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

static int no_host(const char *text)
{
    fprintf(stderr, "banyan_run: \"%s\" is no host: write a:4 or a slots=4\n", text);
    return -1;
}

/* Behind a host's name: "slots=4 max_slots=8", of which the latter limits what a launcher would
 * add. *number is set to the former, and stays NULL without it. */
static int take_words(char *words, char **number)
{
    char *at, *word;

    for (word = strtok_r(words, " \t", &at); word; word = strtok_r(NULL, " \t", &at))
        if (!strncmp(word, "slots=", 6) && !*number)
            *number = word + 6;
        else if (strncmp(word, "max_slots=", 10) != 0 && strncmp(word, "max-slots=", 10) != 0)
            return no_host(word);
    return 0;
}

/* Launchers give names to ssh, which has shells expand them where it is set up so. */
static int is_host(const char *name)
{
    static const char of_names[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
        "._-:[]%@";

    return *name && *name != '-' && !name[strspn(name, of_names)];
}

/* One host, as "a", "a:4" or "a slots=4"; IPv6 addresses in brackets. 0, or -1 after a
 * message. */
static int take_host(struct hosts *h, char *name)
{
    char *number = NULL, *words = name + strcspn(name, " \t"), *colon, *end;
    size_t at = strlen(h->text), names = strlen(h->names);
    long n = 1;

    if (*words)
        *words++ = '\0';
    colon = strrchr(name, ':');
    if (colon && colon > strrchr(name, ']')) {
        *colon = '\0';
        number = colon + 1;
    }
    if (take_words(words, &number) != 0)
        return -1;
    if (number) {
        n = strtol(number, &end, 10);
        if (end == number || *end || n < 1 || n > SLOTS_MAX) {
            fprintf(stderr, "banyan_run: host %s: \"%s\" is no number of ranks\n", name,
                    number);
            return -1;
        }
    }
    if (!is_host(name))
        return no_host(name);
    if (h->count == HOSTS_MAX || at + strlen(name) + 24 > sizeof h->text) {
        fprintf(stderr, "banyan_run: more than %d hosts, or too long names\n", HOSTS_MAX);
        return -1;
    }
    snprintf(h->text + at, sizeof h->text - at, "%s%s:%ld", at ? "," : "", name, n);
    snprintf(h->names + names, sizeof h->names - names, "%s%s", names ? "," : "", name);
    h->slots_of[h->count++] = (int)n;
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
    char *line = NULL;
    size_t cap = 0;
    int rc = 0;

    if (!f) {
        fprintf(stderr, "banyan_run: --hostfile %s: %s\n", path, strerror(errno));
        return -1;
    }
    while (rc == 0 && getline(&line, &cap, f) > 0) {
        char *text = line + strspn(line, " \t");

        text[strcspn(text, "#\r\n")] = '\0';
        if (*text)
            rc = take_host(h, text);
    }
    free(line);
    fclose(f);
    return rc;
}

/* 0, or -1 after a message. */
static int take_hosts(struct hosts *h, const struct bny_launcher_job *job)
{
    const char *from = job->hosts ? "--hosts" : "--hostfile";

    if ((job->hosts ? take_list(h, job->hosts) : take_file(h, job->hostfile)) != 0)
        return -1;
    if (!h->count)
        fprintf(stderr, "banyan_run: no hosts in %s\n", from);
    return h->count ? 0 : -1;
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

/* How many units of so many seconds, rounded up. */
static int units(double seconds, int unit)
{
    int n = (int)(seconds / unit);

    return n + (n * (double)unit < seconds);
}

/* Open MPI's launchers: prterun since 5, orterun before. */
static void tell_openmpi(struct words *w, const struct bny_launcher_job *job,
                         const struct hosts *h, int is_prte)
{
    add(w, "--host");
    add(w, h->text);
    add_number(w, "-np", job->nranks);
    if (is_prte) { /* else it refuses more ranks than CPUs, which the hosts were said to have */
        add(w, "--bind-to");
        add(w, "core:overload-allowed");
    }
    if (job->timeout_s > 0)
        add_number(w, "--timeout", units(job->timeout_s, 1));
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
        snprintf(seconds, sizeof seconds, "%d", units(job->timeout_s, 1));
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

/* How many of the hosts the ranks fill, as many on each; 0: another number on each. */
static int even_hosts(const struct hosts *h, int nranks)
{
    int first = h->slots_of[0], n = 0;

    if (nranks <= first)
        return 1;
    for (; nranks >= first && h->slots_of[n] == first; n++)
        nranks -= first;
    return nranks == 0 ? n : 0;
}

/* 0, or 2 after a message. */
static int tell_srun(struct words *w, const struct bny_launcher_job *job, struct hosts *h)
{
    int hosts = even_hosts(h, job->nranks);
    char *end = h->names;

    if (!hosts) {
        fprintf(
            stderr,
            "banyan_run: srun puts equally many ranks on each host, and %d ranks on %s are "
            "not so: change the numbers, or use srun itself with --distribution=arbitrary\n",
            job->nranks, h->text);
        return 2;
    }
    for (int i = 0; i < hosts; i++)
        end += strcspn(end, ",") + (i + 1 < hosts);
    *end = '\0';
    add(w, "--nodelist");
    add(w, h->names);
    add_number(w, "--nodes", hosts);
    add_number(w, "--ntasks", job->nranks);
    add_number(w, "--ntasks-per-node", job->nranks / hosts);
    add(w, "--input=0");
    if (job->timeout_s > 0) /* Slurm's limits are in minutes */
        add_number(w, "--time", units(job->timeout_s, 60));
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
    return 0;
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

/* Inside a rank of another job: the new job's ranks must not take that one for theirs. */
static void forget_launcher(void)
{
    static const char *const names[] = {
        "BANYAN_ID",         "BANYAN_RANK",          "BANYAN_WORLD_SIZE",
        "BANYAN_LOCAL_RANK", "BANYAN_LOCAL_SIZE",    "BANYAN_LISTEN_FD",
        "BANYAN_BOARD_FD",   "BANYAN_RESTART_COUNT", "RANK",
        "WORLD_SIZE",        "LOCAL_RANK",           "MASTER_ADDR",
        "MASTER_PORT",       "TORCHELASTIC_RUN_ID"
    };

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        unsetenv(names[i]);
}

/* The launcher's command. 0, or an exit status after a message. */
static int tell(struct words *w, struct bny_launcher_job *job, struct hosts *h)
{
    enum kind kind;
    int rc = 0;

    if (take_hosts(h, job) != 0)
        return 2;
    job->nranks = job->nranks ? job->nranks : h->slots;
    if (job->nranks > h->slots) {
        fprintf(stderr,
                "banyan_run: %d ranks are more than the %d of these hosts; write how many each "
                "runs, as in --hosts a:4,b:4\n",
                job->nranks, h->slots);
        return 2;
    }
    kind = choose(job->launcher);
    if (kind == KINDS)
        return job->launcher ? 2 : 125;
    add(w, launchers[kind].program);
    if (kind == HYDRA)
        tell_hydra(w, job, h);
    else if (kind == SRUN)
        rc = tell_srun(w, job, h);
    else
        tell_openmpi(w, job, h, kind == PRTERUN);
    return rc;
}

int bny_launcher_exec(const struct bny_launcher_job *given, char *const argv[])
{
    struct bny_launcher_job job = *given;
    struct hosts *h = calloc(1, sizeof *h);
    struct words w = { 0 };
    int rc;

    forget_launcher();
    w.lacks_memory = !h;
    rc = h ? tell(&w, &job, h) : 0;
    free(h);
    if (rc)
        return rc;
    for (int i = 0; argv[i]; i++)
        add(&w, argv[i]);
    if (w.lacks_memory) {
        fprintf(stderr, "banyan_run: no memory\n");
        return 125;
    }
    execvp(w.list[0], w.list);
    fprintf(stderr, "banyan_run: %s: %s\n", w.list[0], strerror(errno));
    return 125;
}
