/* SPDX-License-Identifier: BSD-3-Clause */
/* The MPI library of this process, by the symbols that it defines and the version that it
 * tells. File names say little: libmpi.so.12 is MPICH 4.3, Intel MPI or MVAPICH, and wheels
 * rename. */
#include "integrations/mpi/find.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* The tables of a loaded object's dynamic section. */
struct tables {
    const ElfW(Sym) * symbols;
    const char *strings;
    const uint32_t *gnu, *sysv;
    size_t soname; /* in strings; 0: none */
};

static void read_tables(const struct dl_phdr_info *info, const ElfW(Dyn) * d, struct tables *t)
{
    memset(t, 0, sizeof *t);
    for (; d->d_tag != DT_NULL; d++) {
        uintptr_t at = d->d_un.d_ptr;
        if (d->d_tag == DT_SONAME)
            t->soname = d->d_un.d_val;
        if (at < info->dlpi_addr) /* the kernel's object: not relocated */
            at += info->dlpi_addr;
        switch (d->d_tag) {
        case DT_SYMTAB: t->symbols = (const void *)at; break;
        case DT_STRTAB: t->strings = (const char *)at; break;
        case DT_GNU_HASH: t->gnu = (const void *)at; break;
        case DT_HASH: t->sysv = (const void *)at; break;
        default: break;
        }
    }
}

static int is_it(const struct tables *t, uint32_t i, const char *name)
{
    const ElfW(Sym) *s = &t->symbols[i];

    return s->st_shndx != SHN_UNDEF && !strcmp(t->strings + s->st_name, name);
}

/* The GNU hash table: a Bloom filter of `words`, then buckets, then chains of hashes whose last
 * has bit 0 set. */
static int gnu_has(const struct tables *t, const char *name)
{
    uint32_t n = t->gnu[0], first = t->gnu[1], words = t->gnu[2], h = 5381, i;
    const uint32_t *buckets = t->gnu + 4 + words * (sizeof(ElfW(Addr)) / 4);
    const uint32_t *chains = buckets + n;

    for (const char *c = name; *c; c++)
        h = h * 33 + (unsigned char)*c;
    i = n ? buckets[h % n] : 0;
    if (i < first || i == 0)
        return 0;
    for (;; i++) {
        uint32_t link = chains[i - first];
        if ((link | 1) == (h | 1) && is_it(t, i, name))
            return 1;
        if (link & 1)
            return 0;
    }
}

static int find_has(const struct tables *t, const char *name)
{
    if (!t->symbols || !t->strings)
        return 0;
    if (t->gnu)
        return gnu_has(t, name);
    for (uint32_t i = 1; t->sysv && i < t->sysv[1]; i++)
        if (is_it(t, i, name))
            return 1;
    return 0;
}

struct search {
    struct bny_mpi_lib *out;
    const char *symbol;
};

static int find_look(struct dl_phdr_info *info, size_t size, void *arg)
{
    const struct search *s = arg;
    struct tables t;

    for (int i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type != PT_DYNAMIC)
            continue;
        read_tables(info, (const void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr), &t);
        if (!find_has(&t, "PMPI_Get_library_version"))
            continue;
        if (s->out->count++ == 0) {
            snprintf(s->out->path, sizeof s->out->path, "%s", info->dlpi_name);
            snprintf(s->out->soname, sizeof s->out->soname, "%s",
                     t.soname ? t.strings + t.soname : "");
            s->out->has_symbol = s->symbol && find_has(&t, s->symbol);
        }
    }
    return 0;
}

void bny_mpi_find(struct bny_mpi_lib *out, const char *symbol)
{
    struct search s = { out, symbol };

    memset(out, 0, sizeof *out);
    dl_iterate_phdr(find_look, &s);
}

/* The number behind it is 0 or 1: MPICH 5.0.1's, by mistake, and 5.0.2's of one interface. */
int bny_mpi_is_standard(const struct bny_mpi_lib *found)
{
    return strstr(found->soname, "mpi_abi.so") != NULL;
}

/* Libraries from before the standard (MPICH 4.3's) cannot say which version theirs is, and need
 * not have its constants. */
static int is_version_1(void *lib)
{
    int (*version)(int *, int *), major = 0, minor = 0;

    *(void **)&version = dlsym(lib, "PMPI_Abi_get_version");
    return version && version(&major, &minor) == 0 && major == 1;
}

const char *bny_mpi_family(const struct bny_mpi_lib *found, char *said, int cap)
{
    static const char *const mpichs[] = { "MPICH", "Intel(R) MPI", "MVAPICH" };
    void *lib = dlopen(*found->path ? found->path : NULL, RTLD_LAZY | RTLD_NOLOAD);
    int (*version)(char *, int *);
    char text[8192] = ""; /* MPI_MAX_LIBRARY_VERSION_STRING of all is less */
    int len = 0;

    *(void **)&version = lib ? dlsym(lib, "PMPI_Get_library_version") : NULL;
    if (version) /* legal before MPI_Init */
        version(text, &len);
    snprintf(said, (size_t)cap, "%.*s", (int)strcspn(text, "\n"), text);
    if (!lib)
        return NULL;
    if (bny_mpi_is_standard(found))
        return is_version_1(lib) ? "abi" : NULL;
    if (strstr(text, "Open MPI"))
        return dlsym(lib, "ompi_mpi_comm_world") ? "openmpi" : NULL;
    /* The interface that MPICH, Intel, Cray and MVAPICH keep in common has number 12. */
    if (!strstr(found->soname, ".so.12"))
        return NULL;
    for (size_t i = 0; i < sizeof mpichs / sizeof mpichs[0]; i++)
        if (strstr(text, mpichs[i]))
            return "mpich";
    return NULL;
}
