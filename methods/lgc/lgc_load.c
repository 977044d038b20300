/* SPDX-License-Identifier: BSD-3-Clause */
/* Loads the module that links oneDNN (lgc_net.h). */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/module.h"
#include "methods/lgc/lgc_net.h"

int bny_lgc_net_load(const struct bny_lgc_net_ops **out, const char *path)
{
    char found[400];
    bny_lgc_net_fn *get;
    void *lib = NULL, *symbol;

    if (bny_module_static_program())
        return bny_fail(BANYAN_ENOTSUP, "LGC: a static program cannot load oneDNN, which its "
                                        "autoencoder needs; link the shared libraries");
    if (path) {
        lib = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
        snprintf(found, sizeof found, "%s", lib ? path : dlerror());
    } else {
        lib = bny_module_load("libbanyan-lgc.so", "methods/lgc/module/", found, sizeof found);
    }
    if (!lib)
        return bny_fail(BANYAN_ENOTSUP,
                        "LGC: the module of its autoencoder cannot be loaded (%.300s); on "
                        "Debian: apt-get install libdnnl-dev, then build banyan again, or "
                        "install libdnnl2",
                        found);
    symbol = dlsym(lib, "bny_lgc_module");
    memcpy(&get, &symbol, sizeof get);
    *out = symbol ? get() : NULL;
    if (!*out || (*out)->version != BNY_LGC_NET_VERSION)
        return bny_fail(BANYAN_EVERSION,
                        "LGC: %.300s is no module of this version of banyan; install both from "
                        "one build",
                        found);
    return 0;
}
