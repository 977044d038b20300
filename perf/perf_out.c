/* SPDX-License-Identifier: BSD-3-Clause */
/* Output: nccl-tests' table, CSV, OSU's two columns, and JSON lines. Rank 0 only. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "perf/perf.h"

static int open_json(struct perf_out *out, const struct perf_opts *o, const char *mode)
{
    *out = (struct perf_out){ .opts = o, .text = stdout };
    if (!o->json)
        return 0;
    out->json = strcmp(o->json, "-") ? fopen(o->json, mode) : stdout;
    if (!out->json) {
        fprintf(stderr, "banyan_perf: rank 0: cannot write %s: %s\n", o->json, strerror(errno));
        return -1;
    }
    /* JSON on standard output stands alone there. */
    if (out->json == stdout)
        out->text = stderr;
    return 0;
}

int perf_out_open(struct perf_out *out, const struct perf_opts *o)
{
    return open_json(out, o, "w");
}

int perf_out_go_on(struct perf_out *out, const struct perf_opts *o)
{
    int rc = open_json(out, o, "a");

    out->columns = 1; /* it may have died in the middle of a line */
    return rc;
}

void perf_out_note(struct perf_out *out, const char *format, ...)
{
    va_list args;

    if (out->opts->format != PERF_TABLE)
        return;
    if (out->columns)
        fputc('\n', out->text);
    out->columns = 0;
    va_start(args, format);
    vfprintf(out->text, format, args);
    va_end(args);
    fputc('\n', out->text);
    fflush(out->text);
}

static void table_head(const struct perf_out *out)
{
    static const char four[] = "    time   algbw   busbw  #wrong";
    const struct perf_opts *o = out->opts;

    fprintf(out->text, "#\n#%48s", "");
    if (o->inplace & 1)
        fprintf(out->text, " %-32s", "            out-of-place");
    if (o->inplace & 2)
        fprintf(out->text, " %-32s", "              in-place");
    fprintf(out->text, "\n#%11s %13s %6s %7s %6s ", "size", "count", "type", "redop", "root");
    for (int i = 0; i < 2; i++)
        if (o->inplace & 1 << i)
            fprintf(out->text, " %s", four);
    fprintf(out->text, " %9s\n#%11s %13s %6s %7s %6s ", "roofline", "(B)", "(elements)", "", "",
            "");
    for (int i = 0; i < 2; i++)
        if (o->inplace & 1 << i)
            fprintf(out->text, " %8s%8s%8s%8s", "(us)", "(GB/s)", "(GB/s)", "");
    fprintf(out->text, " %9s\n", "(GB/s)");
}

void perf_out_head(struct perf_out *out, const struct perf_run *run, const char *cards)
{
    const struct perf_opts *o = out->opts;

    if (o->format == PERF_CSV) {
        fputs(
            "collective,transport,schedule,codec,ranks,bytes,count,dtype,op,root,inplace,iters,"
            "time_min_us,time_median_us,time_p99_us,algbw_GBps,busbw_GBps,wire_bytes,"
            "wire_busbw_GBps,wrong,max_abs_err,rel_err,cpu_s,roofline_GBps\n",
            out->text);
        return;
    }
    fprintf(out->text, "# banyan_perf %s: %s, %d rank%s, transport %s, schedule %s, codec %s\n",
            banyan_version_string(), o->what->name, run->nranks, run->nranks == 1 ? "" : "s",
            run->transport, o->schedule, o->codec);
    if (o->format == PERF_OSU) {
        fprintf(out->text, "# Size       Avg Latency(us)\n");
        return;
    }
    fprintf(out->text,
            "# %d warm-up, %d timed iterations, checks %s; a time is the median of the "
            "slowest rank's\n",
            o->warmup, o->iters, o->check ? "on" : "off");
    fputs(cards, out->text);
    table_head(out);
}

static void table_row(struct perf_out *out, const struct perf_row *r, int last_of_line)
{
    char root[16] = "-1", wrong[24] = "N/A";

    if (out->opts->what->flags & PERF_ROOTED)
        snprintf(root, sizeof root, "%d", r->root);
    if (r->wrong >= 0)
        snprintf(wrong, sizeof wrong, "%" PRId64, r->wrong);
    if (out->columns++ == 0)
        fprintf(out->text, "%12" PRIu64 " %13" PRIu64 " %6s %7s %6s ", r->bytes, r->count,
                r->dtype, out->opts->what->flags & PERF_REDUCES ? r->op : "none", root);
    fprintf(out->text, " %8.2f%8.2f%8.2f%8s", r->time_median_us, r->algbw, r->busbw, wrong);
    if (!last_of_line)
        return;
    out->columns = 0;
    if (r->roofline > 0)
        fprintf(out->text, " %9.2f\n", r->roofline);
    else
        fprintf(out->text, " %9s\n", "N/A");
}

static void csv_row(const struct perf_out *out, const struct perf_row *r)
{
    fprintf(out->text,
            "%s,%s,%s,%s,%d,%" PRIu64 ",%" PRIu64 ",%s,%s,%d,%d,%d,%.3f,%.3f,%.3f,%.4f,"
            "%.4f,%" PRIu64 ",%.4f,%" PRId64 ",%g,%g,%.6f,%.4f\n",
            r->collective, r->transport, r->schedule, r->codec, r->ranks, r->bytes, r->count,
            r->dtype, r->op, r->root, r->inplace, r->iters, r->time_min_us, r->time_median_us,
            r->time_p99_us, r->algbw, r->busbw, r->wire_bytes, r->wire_busbw, r->wrong,
            r->max_abs_err, r->rel_err, r->cpu_s, r->roofline);
}

/* "name":value, or null for what is no number. */
static void json_number(char *buf, size_t cap, size_t *len, const char *name, double v,
                        int digits)
{
    if (*len >= cap)
        return;
    if (isfinite(v))
        *len += (size_t)snprintf(buf + *len, cap - *len, ",\"%s\":%.*g", name, digits, v);
    else
        *len += (size_t)snprintf(buf + *len, cap - *len, ",\"%s\":null", name);
}

/* Quotes and backslashes can only come from the command line (a schedule's file name). */
static const char *json_text(const char *text, char *buf, size_t cap)
{
    size_t n = 0;

    for (; *text && n + 2 < cap; text++) {
        if (*text == '"' || *text == '\\')
            buf[n++] = '\\';
        buf[n++] = (unsigned char)*text < 32 ? ' ' : *text;
    }
    buf[n] = '\0';
    return buf;
}

int perf_row_json(const struct perf_row *r, char *buf, size_t cap)
{
    char schedule[128], codec[128];
    size_t n;

    n = (size_t)snprintf(
        buf, cap,
        "{\"collective\":\"%s\",\"transport\":\"%s\",\"schedule\":\"%s\","
        "\"codec\":\"%s\",\"ranks\":%d,\"bytes\":%" PRIu64 ",\"count\":%" PRIu64 ","
        "\"dtype\":\"%s\",\"op\":\"%s\",\"inplace\":%d,\"iters\":%d,"
        "\"time_us\":{\"min\":%.3f,\"median\":%.3f,\"p99\":%.3f}",
        r->collective, r->transport, json_text(r->schedule, schedule, sizeof schedule),
        json_text(r->codec, codec, sizeof codec), r->ranks, r->bytes, r->count, r->dtype, r->op,
        r->inplace, r->iters, r->time_min_us, r->time_median_us, r->time_p99_us);
    json_number(buf, cap, &n, "predicted_us", r->predicted_us > 0 ? r->predicted_us : NAN, 6);
    json_number(buf, cap, &n, "algbw_GBps", r->algbw, 6);
    json_number(buf, cap, &n, "busbw_GBps", r->busbw, 6);
    json_number(buf, cap, &n, "wire_bytes", (double)r->wire_bytes, 17);
    json_number(buf, cap, &n, "wire_busbw_GBps", r->wire_busbw, 6);
    json_number(buf, cap, &n, "wrong", r->wrong < 0 ? NAN : (double)r->wrong, 17);
    json_number(buf, cap, &n, "max_abs_err", r->wrong < 0 ? NAN : r->max_abs_err, 6);
    json_number(buf, cap, &n, "rel_err", r->wrong < 0 ? NAN : r->rel_err, 6);
    json_number(buf, cap, &n, "cpu_s", r->cpu_s, 6);
    json_number(buf, cap, &n, "roofline_GBps", r->roofline > 0 ? r->roofline : NAN, 6);
    if (n + 1 < cap)
        n += (size_t)snprintf(buf + n, cap - n, "}");
    return (int)n;
}

void perf_out_row(struct perf_out *out, const struct perf_row *row, int last_of_line)
{
    char line[1024];

    switch (out->opts->format) {
    case PERF_TABLE: table_row(out, row, last_of_line); break;
    case PERF_CSV: csv_row(out, row); break;
    case PERF_OSU:
        if (last_of_line) /* one line a size: in place where both were run */
            fprintf(out->text, "%-12" PRIu64 " %.2f\n", row->bytes, row->time_median_us);
        break;
    }
    fflush(out->text);
    if (!out->json)
        return;
    perf_row_json(row, line, sizeof line);
    fprintf(out->json, "%s\n", line);
    fflush(out->json);
}

int perf_out_close(struct perf_out *out, const struct perf_run *run)
{
    int rc = 0;

    if (out->opts->format != PERF_CSV) {
        fprintf(out->text, "# Out of bounds values : %" PRId64 " %s\n", run->wrong_total,
                run->wrong_total ? "FAILED" : "OK");
        fprintf(out->text, "# Avg bus bandwidth    : %g\n#\n",
                run->busbw_n ? run->busbw_sum / run->busbw_n : 0.0);
    }
    if (ferror(out->text) || (out->json && ferror(out->json)))
        rc = -1;
    if (out->json && out->json != stdout && fclose(out->json) != 0)
        rc = -1;
    if (rc)
        fprintf(stderr, "banyan_perf: rank 0: the results could not be written: %s\n",
                strerror(errno));
    return rc;
}
