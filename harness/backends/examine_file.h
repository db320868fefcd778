/* Files that others wrote are read in a process of their own first. A damaged one, of HDF5's older format above all,
 * can end libhdf5 by a signal, or make it take gigabytes or hours: that must be the file's fault and not the end of a
 * run. */
#pragma once

#include "oracle/base/status.h"

/* Opens `path`, reads every attribute and has libhdf5 read every element that it will have to read, in a copy of this process that may take 1 GiB and three
 * times the file's size of memory, and 60 s and one more for each MB of the file. ASSAY_OK says that the copy lived and
 * that assay_fixture_open took the file: then this process may open it, and should do so at once. A dataset whose
 * elements cannot be read is OK here: comparing says so of that tensor.
 *
 * Otherwise the file is not to be opened. ASSAY_BAD_INPUT, with assay_fixture_open's own message, or what the file did:
 * "mine.h5 ended its reader by signal 11 (Segmentation fault)". ASSAY_NO_MEMORY where this machine has less than a
 * reader may take, and that was not enough. To be called by the one thread that uses HDF5. */
assay_status assay_examine_file(assay_context *ctx, const char *path);

/* The same of several files, of which only structure and attributes are read: of goldens, whose elements have digests, and of
 * files with inputs. Names that are no fixture's, and files that are not there, are passed over. */
assay_status assay_examine_structure(assay_context *ctx, int count, const char *const *paths);
