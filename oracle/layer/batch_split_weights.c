#include "oracle/layer/batch_split_weights.h"
