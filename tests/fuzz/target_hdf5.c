/* HDF5 files. libhdf5 itself falls over damaged ones, and is why files of others are examined in a process of their own
 * (harness/backends/examine_file.h). So here inputs describe a file that libhdf5 then makes: its container is sound, and what is
 * odd is what our reader has to look at: types, shapes, layouts, filters, links, attributes, names. */
#include <hdf5.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/read_file.h"

static hid_t small_float(fuzz_bytes *bytes)
{
    const int exponent = 1 + fuzz_below(bytes, 10), mantissa = 1 + fuzz_below(bytes, 20);
    const hid_t type = H5Tcopy(fuzz_below(bytes, 2) ? H5T_IEEE_F32BE : H5T_IEEE_F32LE);
    H5Tset_fields(type, (size_t)(exponent + mantissa), (size_t)mantissa, (size_t)exponent, 0, (size_t)mantissa);
    H5Tset_size(type, (size_t)(1 + fuzz_below(bytes, 8)));
    H5Tset_ebias(type, (size_t)fuzz_below(bytes, 200));
    return type;
}

static hid_t bfloat16(void)
{
    const hid_t type = H5Tcopy(H5T_IEEE_F32LE);
    H5Tset_fields(type, 15, 7, 8, 0, 7);
    H5Tset_size(type, 2);
    H5Tset_ebias(type, 127);
    return type;
}

static hid_t text_type(fuzz_bytes *bytes)
{
    const hid_t type = H5Tcopy(H5T_C_S1);
    const int kind = fuzz_below(bytes, 4);
    H5Tset_size(type, kind == 0 ? H5T_VARIABLE : (size_t)(1 + fuzz_byte(bytes)));
    if (kind == 1) H5Tset_strpad(type, H5T_STR_NULLPAD);
    if (kind == 2) H5Tset_strpad(type, H5T_STR_SPACEPAD);
    if (kind != 3) H5Tset_cset(type, H5T_CSET_UTF8);
    return type;
}

static hid_t whole_type(fuzz_bytes *bytes)
{
    const hid_t all[] = {H5T_STD_I8LE,  H5T_STD_I16BE, H5T_STD_I32LE, H5T_STD_I64LE, H5T_STD_U8LE,
                         H5T_STD_U16LE, H5T_STD_U32BE, H5T_STD_U64LE, H5T_STD_I64BE, H5T_STD_B8LE};
    const hid_t type = H5Tcopy(all[fuzz_below(bytes, 10)]);
    if (fuzz_below(bytes, 8) == 7) H5Tset_precision(type, (size_t)(1 + fuzz_below(bytes, 8)));
    return type;
}

static hid_t compound(fuzz_bytes *bytes)
{
    const hid_t type = H5Tcreate(H5T_COMPOUND, 16);
    H5Tinsert(type, "r", 0, H5T_IEEE_F64LE);
    if (fuzz_below(bytes, 2)) H5Tinsert(type, "i", 8, H5T_IEEE_F64LE);
    return type;
}

static hid_t enumeration(fuzz_bytes *bytes)
{
    const int64_t values[] = {0, 1};
    const hid_t base = whole_type(bytes), type = H5Tenum_create(base);
    H5Tenum_insert(type, "FALSE", &values[0]);
    H5Tenum_insert(type, "TRUE", &values[1]);
    H5Tclose(base);
    return type;
}

static hid_t list_type(fuzz_bytes *bytes)
{
    const hsize_t dims[] = {2, 3};
    return fuzz_below(bytes, 2) ? H5Tarray_create2(H5T_IEEE_F32LE, 2, dims) : H5Tvlen_create(H5T_IEEE_F32LE);
}

static hid_t draw_type(fuzz_bytes *bytes)
{
    switch (fuzz_below(bytes, 16)) {
    case 0:
    case 1:
        return H5Tcopy(H5T_IEEE_F32LE);
    case 2:
        return H5Tcopy(H5T_IEEE_F64LE);
    case 3:
        return H5Tcopy(H5T_IEEE_F64BE);
    case 4:
    case 5:
        return bfloat16();
    case 6:
        return small_float(bytes);
    case 7:
        return text_type(bytes);
    case 8:
        return compound(bytes);
    case 9:
        return enumeration(bytes);
    case 10:
        return list_type(bytes);
    case 11:
        return H5Tcopy(H5T_STD_REF_OBJ);
    case 12:
        return H5Tcreate(H5T_OPAQUE, (size_t)(1 + fuzz_below(bytes, 16)));
    default:
        return whole_type(bytes);
    }
}

/* *count: of its elements; 0 where there are too many to be written. */
static hid_t draw_space(fuzz_bytes *bytes, hsize_t dims[H5S_MAX_RANK], int *rank, int64_t *count)
{
    hsize_t most[H5S_MAX_RANK];
    const int kind = fuzz_below(bytes, 16);
    *rank = 0;
    *count = 1;
    if (kind == 0) return H5Screate(H5S_SCALAR);
    if (kind == 1) return H5Screate(H5S_NULL);
    *rank = kind < 14 ? 1 + kind % 3 : 1 + fuzz_below(bytes, H5S_MAX_RANK);
    for (int i = 0; i < *rank; i++) {
        const int64_t length = fuzz_number(bytes);
        dims[i] = (hsize_t)(length < 0 ? ~length : length);
        most[i] = fuzz_below(bytes, 8) == 7 ? H5S_UNLIMITED : dims[i];
        if (*count > 0) *count = dims[i] > 4096 || *count * (int64_t)dims[i] > 4096 ? 0 : *count * (int64_t)dims[i];
    }
    return H5Screate_simple(*rank, dims, most);
}

static void write_attribute(fuzz_bytes *bytes, hid_t object)
{
    static const char *const names[] = {"digest", "float_type", "labels",     "format",  "format_version", "kind",
                                        "case",   "case_yaml",  "profiles",   "recipes", "expects",        "generator",
                                        "dtype",  "engine",     "checkpoint", "checksum"};
    static const char *const texts[] = {"assay",
                                        "1",
                                        "2",
                                        "golden",
                                        "candidate",
                                        "bfloat16",
                                        "float8_e4m3fn",
                                        "int32",
                                        "B",
                                        "",
                                        "op: mlp\n",
                                        "float32",
                                        "float4_e2m1fn",
                                        "00000000000000000000000000000000",
                                        "[\"a\"]",
                                        "weights/wo bfloat16 [3] [E] seed 3 distribution normal scale 0.5 mean 0 low 0 "
                                        "high 1 digest "
                                        "0000000000000000000000000000000000000000000000000000000000000000"};
    enum { NAMES = sizeof names / sizeof *names, TEXTS = sizeof texts / sizeof *texts };
    static char data[1 << 15];
    char name[300], own[256];
    hsize_t dims[H5S_MAX_RANK];
    int rank = 0;
    int64_t count = 0;
    const int which = fuzz_below(bytes, NAMES + 1);
    if (which < NAMES) {
        snprintf(name, sizeof name, "%s", names[which]);
    } else {
        fuzz_consume_text(bytes, name, sizeof name);
    }
    const bool plain = fuzz_below(bytes, 4) != 0;
    const hid_t type = plain ? text_type(bytes) : draw_type(bytes);
    const hid_t space = plain && fuzz_below(bytes, 2) ? H5Screate(H5S_SCALAR) : draw_space(bytes, dims, &rank, &count);
    if (H5Sget_simple_extent_type(space) != H5S_SIMPLE) count = 1;
    const size_t size = H5Tget_size(type);
    const int text = fuzz_below(bytes, TEXTS + 1);
    if (text == TEXTS) fuzz_consume_text(bytes, own, sizeof own);
    const char *value = text < TEXTS ? texts[text] : own;
    const bool fits = count > 0 && size > 0 && (size_t)count <= sizeof data / size;
    memset(data, 0, sizeof data);
    for (int64_t i = 0; fits && i < count; i++) {
        char *to = data + (size_t)i * size;
        if (H5Tis_variable_str(type) > 0) {
            memcpy(to, &value, sizeof value);
        } else if (H5Tget_class(type) == H5T_STRING) {
            memcpy(to, value, strlen(value) < size ? strlen(value) : size);
        } else if (H5Tget_class(type) == H5T_INTEGER) {
            const int64_t number = fuzz_number(bytes);
            memcpy(to, &number, size < sizeof number ? size : sizeof number);
        }
    }
    const hid_t id = fits ? H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT) : -1;
    if (id >= 0 && fits && H5Tget_class(type) != H5T_VLEN) H5Awrite(id, type, data);
    if (id >= 0) H5Aclose(id);
    if (space >= 0) H5Sclose(space);
    H5Tclose(type);
}

static hid_t draw_layout(fuzz_bytes *bytes, int rank, const hsize_t *dims)
{
    static const unsigned none;
    hsize_t chunk[H5S_MAX_RANK];
    const hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
    const int kind = fuzz_below(bytes, 8), filters = fuzz_byte(bytes) % 64;
    if (kind == 0) H5Pset_layout(creation, H5D_COMPACT);
    if (kind == 1) H5Pset_external(creation, "/dev/zero", 0, H5F_UNLIMITED);
    if (kind > 3 && rank > 0) {
        for (int i = 0; i < rank; i++) {
            chunk[i] = kind > 5 ? dims[i] : (hsize_t)(1 + fuzz_below(bytes, 5));
            if (chunk[i] == 0 || chunk[i] > 4096) chunk[i] = 4;
        }
        H5Pset_chunk(creation, rank, chunk);
        if (filters & 1) H5Pset_fletcher32(creation);
        if (filters & 2) H5Pset_deflate(creation, 1);
        if (filters & 4) H5Pset_shuffle(creation);
        if ((filters & 24) == 24) H5Pset_filter(creation, 32015, H5Z_FLAG_OPTIONAL, 0, &none);
    }
    if ((filters & 32) != 0) H5Pset_alloc_time(creation, H5D_ALLOC_TIME_EARLY);
    return creation;
}

static void add_links(fuzz_bytes *bytes, hid_t file, const char *name, hid_t creation)
{
    switch (fuzz_below(bytes, 6)) {
    case 0:
        H5Lcreate_soft("/outputs/y", file, name, creation, H5P_DEFAULT);
        break;
    case 1:
        H5Lcreate_external("/etc/passwd", "/", file, name, creation, H5P_DEFAULT);
        break;
    case 2: /* a group within itself */
        H5Lcreate_hard(file, "/", file, name, creation, H5P_DEFAULT);
        break;
    case 3: {
        const hid_t type = draw_type(bytes);
        H5Tcommit2(file, name, type, creation, H5P_DEFAULT, H5P_DEFAULT);
        H5Tclose(type);
        break;
    }
    case 4: {
        const hid_t group = H5Gcreate2(file, name, creation, H5P_DEFAULT, H5P_DEFAULT);
        if (group >= 0) write_attribute(bytes, group);
        if (group >= 0) H5Gclose(group);
        break;
    }
    default:
        H5Lcreate_hard(file, "/outputs/y", file, name, creation, H5P_DEFAULT);
    }
}

static void add_object(fuzz_bytes *bytes, hid_t file, hid_t links)
{
    static const char *const names[] = {
        "outputs/y",          "inputs/x", "weights/wo", "routing/selected_experts", "error_scale/f32/outputs/y",
        "gradients/inputs/x", "y"};
    enum { NAMES = sizeof names / sizeof *names };
    static char data[4096 * 16];
    hsize_t dims[H5S_MAX_RANK] = {0};
    char name[300];
    int rank = 0;
    int64_t count = 0;
    const int which = fuzz_below(bytes, NAMES + 1);
    if (which < NAMES) {
        snprintf(name, sizeof name, "%s", names[which]);
    } else {
        fuzz_consume_text(bytes, name, sizeof name);
    }
    if (fuzz_below(bytes, 8) == 7) {
        add_links(bytes, file, name, links);
        return;
    }
    const hid_t type = draw_type(bytes), space = draw_space(bytes, dims, &rank, &count);
    const hid_t creation = draw_layout(bytes, rank, dims);
    /* early allocation of much is the writer's trouble, not the reader's */
    if (count == 0) H5Pset_alloc_time(creation, H5D_ALLOC_TIME_LATE);
    const hid_t id = H5Dcreate2(file, name, type, space, links, creation, H5P_DEFAULT);
    const size_t size = H5Tget_size(type);
    const int how = fuzz_below(bytes, 8);
    const H5T_class_t class = H5Tget_class(type);
    const bool plain = class == H5T_FLOAT || class == H5T_INTEGER || class == H5T_ENUM || class == H5T_OPAQUE;
    if (id >= 0 && plain && count > 0 && how != 0 && (size_t)count * size <= sizeof data) {
        size_t given = 0;
        const uint8_t *from = fuzz_consume(bytes, (size_t)fuzz_byte(bytes), &given);
        memset(data, how == 1 ? 0xff : 0, (size_t)count * size);
        if (given > 0) memcpy(data, from, given < (size_t)count * size ? given : (size_t)count * size);
        H5Dwrite(id, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data);
    }
    for (int i = fuzz_below(bytes, 4); id >= 0 && i > 0; i--) write_attribute(bytes, id);
    if (id >= 0) H5Dclose(id);
    H5Pclose(creation);
    if (space >= 0) H5Sclose(space);
    H5Tclose(type);
}

static const char *const ours[] = {"/", "outputs/y", "inputs/x", "routing/selected_experts", "weights/scales"};

/* Another value of an attribute, or none; another name of a dataset, or none; other elements. */
static void change_object(fuzz_bytes *bytes, hid_t file)
{
    static const char *const attributes[] = {"digest",   "float_type",     "labels",   "recipes",
                                             "profiles", "format_version", "case_yaml"};
    const char *path = ours[fuzz_below(bytes, 5)], *attribute = attributes[fuzz_below(bytes, 7)];
    char data[64], name[64];
    const int what = fuzz_below(bytes, 6);
    const hid_t id = H5Oopen(file, path, H5P_DEFAULT);
    if (id < 0) return;
    if (what == 0) H5Adelete(id, attribute);
    if (what == 1) write_attribute(bytes, id);
    if (what == 2) { /* of the same type */
        const hid_t old = H5Aopen(id, attribute, H5P_DEFAULT), text = H5Tcopy(H5T_C_S1);
        char value[300];
        const char *values[64];
        fuzz_consume_text(bytes, value, sizeof value);
        for (int i = 0; i < 64; i++) values[i] = value;
        H5Tset_size(text, H5T_VARIABLE);
        H5Tset_cset(text, H5T_CSET_UTF8);
        const hid_t space = old >= 0 ? H5Aget_space(old) : -1;
        if (space >= 0 && H5Sget_simple_extent_npoints(space) <= 64) H5Awrite(old, text, values);
        if (space >= 0) H5Sclose(space);
        if (old >= 0) H5Aclose(old);
        H5Tclose(text);
    }
    fuzz_consume_text(bytes, name, sizeof name);
    if (what == 3 && path[0] != '/') H5Ldelete(file, path, H5P_DEFAULT);
    if (what == 4 && path[0] != '/') H5Lmove(file, path, file, name, H5P_DEFAULT, H5P_DEFAULT);
    if (what == 5 && path[0] != '/') {
        size_t given = 0;
        const uint8_t *from = fuzz_consume(bytes, sizeof data, &given);
        const hid_t type = H5Dget_type(id);
        memset(data, 0, sizeof data);
        if (given > 0) memcpy(data, from, given);
        const H5T_class_t class = H5Tget_class(type);
        const bool plain = class == H5T_FLOAT || class == H5T_INTEGER;
        if (plain && H5Dget_storage_size(id) <= sizeof data) H5Dwrite(id, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data);
        H5Tclose(type);
    }
    H5Oclose(id);
}

/* A file of our own writer, with right digests, to be changed. */
static hid_t open_ours(const char *path, hid_t access)
{
    static uint8_t *bytes;
    static size_t size;
    if (bytes == NULL) {
        char made[256];
        snprintf(made, sizeof made, "%s", fuzz_path("ours.h5"));
        fuzz_write_fixture(made, false);
        bytes = fuzz_read(made, &size);
        fuzz_path("a.h5");
    }
    fuzz_file("a.h5", bytes, size);
    return H5Fopen(path, H5F_ACC_RDWR, access);
}

static void try_hdf5(const uint8_t *data, size_t size)
{
    fuzz_bytes bytes = {data, data + size};
    const char *path = fuzz_path("a.h5");
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    const unsigned how = fuzz_byte(&bytes);
    const hid_t access = H5Pcreate(H5P_FILE_ACCESS), creation = H5Pcreate(H5P_FILE_CREATE);
    const hid_t links = H5Pcreate(H5P_LINK_CREATE);
    H5Pset_create_intermediate_group(links, 1);
    H5Pset_fclose_degree(access, H5F_CLOSE_STRONG);
    H5Pset_fapl_core(access, 1 << 14, 1);
    if (how & 1) H5Pset_libver_bounds(access, H5F_LIBVER_V18, H5F_LIBVER_LATEST);
    if (how & 2) H5Pset_userblock(creation, 512);
    if ((how & 12) == 12) H5Pset_sizes(creation, 4, 4);
    if (how & 16) H5Pset_link_creation_order(creation, H5P_CRT_ORDER_TRACKED | H5P_CRT_ORDER_INDEXED);
    const bool is_ours = (how & 32) != 0;
    const hid_t file = is_ours ? open_ours(path, access) : H5Fcreate(path, H5F_ACC_TRUNC, creation, access);
    for (int i = 0; is_ours && file >= 0 && i < 16 && bytes.at < bytes.end; i++) {
        if (fuzz_below(&bytes, 4) < 3) {
            change_object(&bytes, file);
        } else {
            add_object(&bytes, file, links);
        }
    }
    if (is_ours && file >= 0) H5Fclose(file);
    if (!is_ours && file >= 0) {
        const hid_t root = H5Gopen2(file, "/", H5P_DEFAULT);
        for (int i = fuzz_below(&bytes, 6); i > 0; i--) write_attribute(&bytes, root);
        H5Gclose(root);
        for (int i = 0; i < 8 && bytes.at < bytes.end; i++) add_object(&bytes, file, links);
        H5Fclose(file);
    }
    H5Pclose(links);
    H5Pclose(creation);
    H5Pclose(access);
    if (file >= 0) fuzz_read_file(path);
}

static void hdf5_seeds(fuzz_corpus *corpus)
{
    uint8_t seed[256] = {32};
    fuzz_seed(corpus, seed, 1); /* nothing of it is changed */
    for (unsigned i = 0; i < 64; i++) {
        unsigned state = i + 1;
        for (size_t j = 0; j < sizeof seed; j++) {
            state = state * 1664525u + 1013904223u;
            seed[j] = (uint8_t)((state >> 24) % (j % 3 == 0 ? 200 : 16));
        }
        fuzz_seed(corpus, seed, 32 + 3 * i);
    }
}

const fuzz_target fuzz_hdf5 = {"hdf5", try_hdf5, hdf5_seeds, false};
