package pod

import "errors"

// ErrUnknown is returned for a pod that has no worker: there is nothing to stop.
var ErrUnknown = errors.New("no such pod on this node")
