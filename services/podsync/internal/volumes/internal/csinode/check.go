package csinode

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/container-storage-interface/spec/lib/go/csi"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"

	"github.com/microlet/microlet/services/internal/nodelabel"
)

// https://github.com/container-storage-interface/spec/blob/master/spec.md#size-limits
const (
	maxDriverName = 63
	maxNodeID     = 256
	maxTopology   = 4 << 10
)

// check refuses what the API server would. It would refuse it with the whole Node, which says more than what one driver
// does.
func check(driver string, info *csi.NodeGetInfoResponse) error {
	var errs []error
	for _, why := range utilvalidation.IsDNS1123Subdomain(driver) {
		errs = append(errs, fmt.Errorf("the name of the driver is %q: %s", short(driver), why))
	}
	if len(driver) > maxDriverName {
		errs = append(errs, fmt.Errorf("the name of the driver has %d bytes: at most %d are allowed", len(driver),
			maxDriverName))
	}
	switch id := info.GetNodeId(); {
	case id == "":
		errs = append(errs, fmt.Errorf("driverNodeID of %s must not be empty", short(driver)))
	case len(id) > maxNodeID:
		errs = append(errs, fmt.Errorf("node_id has %d bytes: at most %d are allowed", len(id), maxNodeID))
	case !utf8.ValidString(id) || strings.ContainsFunc(id, unicode.IsControl):
		errs = append(errs, fmt.Errorf("node_id is %q: it must be text without control characters", id))
	}
	return errors.Join(append(errs, checkTopology(info.GetAccessibleTopology().GetSegments()))...)
}

func checkTopology(segments map[string]string) error {
	size := 0
	for key, value := range segments {
		size += len(key) + len(value)
	}
	if size > maxTopology {
		return fmt.Errorf("accessible_topology has %d bytes: at most %d are allowed", size, maxTopology)
	}
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(segments)) {
		for _, problem := range nodelabel.Problems(key, segments[key]) {
			errs = append(errs, fmt.Errorf("accessible_topology is %q:%q: %s: %s", key, segments[key], problem.Why,
				problem.Instead))
		}
	}
	return errors.Join(errs...)
}

// short keeps a name from filling a message.
func short(name string) string { return name[:min(len(name), maxDriverName)] }
