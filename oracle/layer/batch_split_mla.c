#include "oracle/layer/batch_split_mla.h"
