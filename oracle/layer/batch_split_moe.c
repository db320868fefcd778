#include "oracle/layer/batch_split_moe.h"
