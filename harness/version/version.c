#define _GNU_SOURCE /* dl_iterate_phdr */
#include "harness/version/version.h"

#include <elf.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

#include "assay_commit.h" /* of the build folder */

/* One text for each instruction set: nothing is put together when the program runs. */
#define WITHOUT(isa) ASSAY_VERSION " (" isa ")"
#define WITH(isa) ASSAY_VERSION " (commit " ASSAY_COMMIT ", " isa ")"
#define TEXT(isa) (sizeof ASSAY_COMMIT > 1 ? WITH(isa) : WITHOUT(isa))

const char *assay_version_text(assay_isa isa)
{
    switch (isa) {
    case ASSAY_ISA_AVX512:
        return TEXT("avx512");
    case ASSAY_ISA_AVX2:
        return TEXT("avx2");
    case ASSAY_ISA_SCALAR:
        break;
    }
    return TEXT("scalar");
}

enum { ID_BYTES = 32 };

/* The note NT_GNU_BUILD_ID among the notes of one segment. */
static void read_notes(const char *at, size_t size, char *text)
{
    const size_t head = sizeof(ElfW(Nhdr));
    while (size >= head) {
        ElfW(Nhdr) note;
        memcpy(&note, at, head);
        const size_t name = (note.n_namesz + 3U) & ~(size_t)3, body = (note.n_descsz + 3U) & ~(size_t)3;
        if (size < head + name + body) return;
        if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && memcmp(at + head, "GNU", 4) == 0) {
            const unsigned char *id = (const unsigned char *)at + head + name;
            for (size_t i = 0; i < note.n_descsz && i < ID_BYTES; i++) snprintf(text + 2 * i, 3, "%02x", id[i]);
            return;
        }
        at += head + name + body;
        size -= head + name + body;
    }
}

static bool holds_this(const struct dl_phdr_info *object)
{
    const uintptr_t here = (uintptr_t)&assay_version_text;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &object->dlpi_phdr[i];
        const uintptr_t start = object->dlpi_addr + segment->p_vaddr;
        if (segment->p_type == PT_LOAD && here >= start && here - start < segment->p_memsz) return true;
    }
    return false;
}

static int visit(struct dl_phdr_info *object, size_t size, void *text)
{
    (void)size;
    if (!holds_this(object)) return 0;
    for (int i = 0; i < object->dlpi_phnum && ((const char *)text)[0] == '\0'; i++) {
        const ElfW(Phdr) *segment = &object->dlpi_phdr[i];
        if (segment->p_type != PT_NOTE) continue;
        read_notes((const char *)(object->dlpi_addr + segment->p_vaddr), segment->p_memsz, text);
    }
    return 1;
}

void assay_build_id(char text[65])
{
    text[0] = '\0';
    dl_iterate_phdr(visit, text);
}
