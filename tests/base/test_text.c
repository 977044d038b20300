/* SPDX-License-Identifier: BSD-3-Clause */
/* Promises of text: settings, parameters, errors and what machines read have decimal points, in
 * whatever locale the program is. */
#include <criterion/criterion.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/lazy_cjson.h"
#include "base/log.h"
#include "base/param.h"
#include "base/text.h"
#include "compress/codec.h"

static char heard[200];

static void hear(void *ctx, enum banyan_log_level level, const char *line)
{
    snprintf(heard, sizeof heard, "%s", line);
    (void)ctx;
    (void)level;
}

/* A peer's text may be anything. */
Test(text, no_sentence_moves_the_cursor)
{
    static const char evil[] = "\x1b[2Jrank 3\nfake\ttext\x7f \xc2\x9b 31m \xc3\xa9 \xc2\xb5",
                      tame[] = "?[2Jrank 3 fake text? ?\? 31m \xc3\xa9 \xc2\xb5";

    banyan_set_log(hear, NULL, BANYAN_LOG_INFO);
    bny_info("%s", evil);
    banyan_set_log(NULL, NULL, BANYAN_LOG_INFO);
    cr_assert_not_null(strstr(heard, tame), "%s", heard);
    bny_fail(BANYAN_EPROTO, "%s", evil);
    cr_assert_str_eq(banyan_last_error(), tame);
    bny_set_last_error(evil);
    cr_assert_str_eq(banyan_last_error(), tame);
}

Test(text, numbers_are_read_and_written_with_points)
{
    char *end, text[40], *written;
    size_t len;
    FILE *f = open_memstream(&written, &len);

    cr_assert_eq(bny_strtod("4.4,", &end), 4.4);
    cr_assert_str_eq(end, ",");
    cr_assert_eq(bny_strtod("4,4", &end), 4);
    bny_snprintf(text, sizeof text, "%.2f %s %g", 1234.5, "x", .25);
    cr_assert_str_eq(text, "1234.50 x 0.25");
    bny_fprintf(f, "%.17g", .5);
    fclose(f);
    cr_assert_str_eq(written, "0.5");
    free(written);
    cr_assert_eq(bny_log_level_named("INFO"), BANYAN_LOG_INFO);
}

Test(text, the_programs_locale_stays)
{
    char before[8], after[8], text[8];

    snprintf(before, sizeof before, "%.1f", 1.5);
    bny_snprintf(text, sizeof text, "%.1f", 1.5);
    snprintf(after, sizeof after, "%.1f", 1.5);
    cr_assert_str_eq(before, after);
    cr_assert_str_eq(setlocale(LC_NUMERIC, NULL),
                     getenv("BANYAN_TEST_LOCALE") ? getenv("BANYAN_TEST_LOCALE") : "C");
}

Test(text, settings_and_errors)
{
    setenv("BANYAN_SILENT_S", "4.4", 1);
    setenv("BANYAN_INIT_TIMEOUT", "30.5", 1);
    cr_assert_eq(bny_param_real("BANYAN_SILENT_S"), 4.4);
    cr_assert_eq(bny_param_real("BANYAN_INIT_TIMEOUT"), 30.5);
    bny_fail(BANYAN_EINVAL, "eta is %g", 1.5);
    cr_assert_str_eq(banyan_last_error(), "eta is 1.5");
}

Test(text, parameters_of_codecs)
{
    const struct bny_codec *c;

    cr_assert_eq(bny_codec_parse(&c, "topk:delta=0.025,force=1"), 0, "%s", banyan_last_error());
    cr_assert_eq(bny_codec_get(c, "delta"), .025);
    cr_assert_str_eq(c->spec, "topk:delta=0.025,force=1");
    cr_assert_eq(bny_codec_parse(&c, "topk:delta=0.3.1"), -BANYAN_EINVAL);
}

Test(text, json)
{
    static const char list[] = "[1.5e3,5]";
    const char *end;
    cJSON *o;

    if (bny_lazy_cjson() < 0)
        cr_skip_test("libcjson is not installed");
    o = bny_json_parse(list, sizeof list - 1, &end);
    cr_assert(o && o->child->valuedouble == 1500 && o->child->next->valuedouble == 5);
    cJSON_Delete(o);
}
