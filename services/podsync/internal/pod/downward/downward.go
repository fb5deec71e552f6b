// Package downward reads the fields of a pod for the downward API, for environment variables and files.
//
// Variables and files allow different selectors. The differences are those of the API.
package downward

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/microlet/microlet/services/internal/podutil"
)

// Addresses are what a pod and its node are reached at, primary address first.
type Addresses struct {
	PodIPs, HostIPs []string
}

// Field returns a field for an environment variable.
func Field(ref *v1.ObjectFieldSelector, p *v1.Pod, a Addresses) (string, error) {
	if ref.APIVersion != "" && ref.APIVersion != "v1" {
		return "", fmt.Errorf("unsupported pod version: %s", ref.APIVersion)
	}
	switch ref.FieldPath {
	case "spec.nodeName", "spec.host": // the second is what old clients write
		return p.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return p.Spec.ServiceAccountName, nil
	case "status.hostIP":
		if len(a.HostIPs) == 0 {
			return "", fmt.Errorf("fieldPath %s: the node has no address yet", ref.FieldPath)
		}
		return a.HostIPs[0], nil
	case "status.hostIPs":
		if len(a.HostIPs) == 0 {
			return "", fmt.Errorf("fieldPath %s: the node has no address yet", ref.FieldPath)
		}
		return strings.Join(a.HostIPs, ","), nil
	case "status.podIP":
		if len(a.PodIPs) == 0 {
			return "", nil
		}
		return a.PodIPs[0], nil
	case "status.podIPs":
		return strings.Join(a.PodIPs, ","), nil
	}
	return Metadata(ref.FieldPath, p)
}

// Metadata returns a field for a file of a volume: names and maps of the metadata only.
func Metadata(path string, p *v1.Pod) (string, error) {
	if of, key, ok := subscript(path); ok {
		switch of {
		case "metadata.annotations":
			if errs := validation.IsQualifiedName(strings.ToLower(key)); len(errs) != 0 {
				return "", fmt.Errorf("invalid key subscript in %s: %s", path, strings.Join(errs, ";"))
			}
			return p.Annotations[key], nil
		case "metadata.labels":
			if errs := validation.IsQualifiedName(key); len(errs) != 0 {
				return "", fmt.Errorf("invalid key subscript in %s: %s", path, strings.Join(errs, ";"))
			}
			return p.Labels[key], nil
		}
		return "", fmt.Errorf("fieldPath %q does not support subscript", path)
	}
	switch path {
	case "metadata.annotations":
		return formatMap(p.Annotations), nil
	case "metadata.labels":
		return formatMap(p.Labels), nil
	case "metadata.name":
		return p.Name, nil
	case "metadata.namespace":
		return p.Namespace, nil
	case "metadata.uid":
		return string(p.UID), nil
	}
	return "", fmt.Errorf("unsupported fieldPath: %v", path)
}

// subscript splits metadata.labels['key'] into its two parts.
func subscript(path string) (of, key string, ok bool) {
	rest, ok := strings.CutSuffix(path, "']")
	if !ok {
		return "", "", false
	}
	of, key, ok = strings.Cut(rest, "['")
	return of, key, ok && of != ""
}

// formatMap writes one line a key, in order, with the value quoted.
func formatMap(m map[string]string) string {
	lines := make([]string, 0, len(m))
	for k, v := range m {
		lines = append(lines, k+"="+strconv.Quote(v))
	}
	// By key, not by line: a key may be the beginning of another.
	slices.SortFunc(lines, func(a, b string) int {
		ka, _, _ := strings.Cut(a, "=")
		kb, _, _ := strings.Cut(b, "=")
		return strings.Compare(ka, kb)
	})
	return strings.Join(lines, "\n")
}

// Resource returns a container's request or limit in units of the selector's divisor,
// rounded up. The container is the one that the selector names, or c when it names none
// (c may be nil when it must). A limit that is not set is the amount of allocatable, since
// no container can have more: the node's for files, Allocatable's for variables.
func Resource(ref *v1.ResourceFieldSelector, p *v1.Pod, c *v1.Container, allocatable v1.ResourceList) (string, error) {
	if ref.ContainerName != "" {
		if c = containerOf(p, ref.ContainerName); c == nil {
			return "", fmt.Errorf("container %s not found", ref.ContainerName)
		}
	}
	if c == nil {
		return "", fmt.Errorf("container %s not found", ref.ContainerName)
	}
	kind, name, ok := strings.Cut(ref.Resource, ".")
	if !ok {
		return "", fmt.Errorf("unsupported container resource : %v", ref.Resource)
	}
	resourceName := v1.ResourceName(name)
	hugePages := strings.HasPrefix(name, v1.ResourceHugePagesPrefix)
	switch resourceName {
	case v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage:
	default:
		if !hugePages {
			return "", fmt.Errorf("unsupported container resource : %v", ref.Resource)
		}
	}
	var amount resource.Quantity
	switch kind {
	case "limits":
		amount = c.Resources.Limits[resourceName]
		if amount.IsZero() && !hugePages { // huge pages are never overcommitted: no limit is none
			amount = allocatable[resourceName]
		}
	case "requests":
		amount = c.Resources.Requests[resourceName]
	default:
		return "", fmt.Errorf("unsupported container resource : %v", ref.Resource)
	}
	divisor := ref.Divisor
	if divisor.IsZero() {
		divisor = resource.MustParse("1")
	}
	whole, part := float64(amount.Value()), float64(divisor.Value())
	if resourceName == v1.ResourceCPU {
		whole, part = float64(amount.MilliValue()), float64(divisor.MilliValue())
	}
	return strconv.FormatInt(int64(math.Ceil(whole/part)), 10), nil
}

// Allocatable returns what a container of the pod can have at most: the limits of the pod
// as a whole where it has them, else the node's allocatable amounts.
func Allocatable(p *v1.Pod, node v1.ResourceList) v1.ResourceList {
	if !resourcehelper.IsPodLevelLimitsSet(p) {
		return node
	}
	list := node.DeepCopy()
	for name := range list {
		if limit := p.Spec.Resources.Limits[name]; resourcehelper.IsSupportedPodLevelResource(name) && !limit.IsZero() {
			list[name] = limit
		}
	}
	return list
}

func containerOf(p *v1.Pod, name string) *v1.Container {
	for c := range podutil.Containers(&p.Spec) {
		if c.Name == name {
			return c
		}
	}
	return nil
}
