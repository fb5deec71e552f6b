// Package answer checks what device plugins say.
//
// A plugin runs as root on most nodes, and what it says goes into the configuration of containers. So an answer is
// bounded, and refused as a whole when the container runtime could not use it or could take it for something else.
package answer

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/util/validation"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"tags.cncf.io/container-device-interface/pkg/parser"
)

const (
	// MaxDevices bounds the devices of one plugin.
	MaxDevices = 64 << 10
	// MaxID bounds the ID of a device. The API speaks of 63 characters, and plugins have longer ones.
	MaxID = 1024
	// maxNUMA bounds the NUMA nodes that one device is near to. No kernel has more.
	maxNUMA = 1024
	// maxContainer bounds what a plugin adds to one container, as protobuf.
	maxContainer = 256 << 10
	// maxPath is the kernel's PATH_MAX without the end of the text.
	maxPath = 4095
	// maxKey bounds the key of an annotation: a prefix, a slash and a name.
	maxKey = 253 + 1 + 63
	// maxAnnotation and maxAnnotations bound the value of one annotation and all of a container, in bytes: the runtime
	// returns them with each list of containers.
	maxAnnotation  = 8 << 10
	maxAnnotations = 64 << 10
	// maxShown is how much of a bad value an error has.
	maxShown = 80
)

// Devices are those of one plugin by ID.
type Devices map[string]Device

// Device is what a plugin says of one device.
type Device struct {
	Healthy bool
	// NUMA are the nodes that the device is near to, in order and each once; none if the plugin does not say.
	NUMA []int64
}

// List returns the devices of a plugin. Of two with one ID, the last counts, as for the kubelet.
func List(list *pluginapi.ListAndWatchResponse) (Devices, error) {
	if n := len(list.GetDevices()); n > MaxDevices {
		return nil, fmt.Errorf("the plugin has %d devices, at most %d are possible", n, MaxDevices)
	}
	devices := make(Devices, len(list.GetDevices()))
	for i, d := range list.GetDevices() {
		if err := checkID(d.GetID()); err != nil {
			return nil, fmt.Errorf("devices[%d].ID: %w", i, err)
		}
		nodes := d.GetTopology().GetNodes()
		if len(nodes) > maxNUMA {
			return nil, fmt.Errorf("devices[%d].topology.nodes: device %s has %d NUMA nodes, at most %d are possible",
				i, show(d.GetID()), len(nodes), maxNUMA)
		}
		devices[d.GetID()] = Device{Healthy: d.GetHealth() == pluginapi.Healthy, NUMA: numa(nodes)}
	}
	return devices, nil
}

// numa leaves out negative nodes, by which drivers mean none.
func numa(nodes []*pluginapi.NUMANode) []int64 {
	var found []int64
	for _, n := range nodes {
		if n.GetID() >= 0 {
			found = append(found, n.GetID())
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

func checkID(id string) error {
	switch {
	case id == "":
		return errors.New("it is empty")
	case len(id) > MaxID:
		return fmt.Errorf("%s has %d bytes, at most %d are possible", show(id), len(id), MaxID)
	}
	return text(id)
}

// Allocated returns what a plugin adds to the one container that it was asked for.
func Allocated(response *pluginapi.AllocateResponse) (*pluginapi.ContainerAllocateResponse, error) {
	if len(response.GetContainerResponses()) == 0 {
		return nil, errors.New("no containers return in allocation response")
	}
	c := response.GetContainerResponses()[0]
	if err := Container(c); err != nil {
		return nil, fmt.Errorf("the plugin's answer to Allocate cannot be used: %w", err)
	}
	return c, nil
}

// Container checks what a plugin adds to a container. The error names the field and what is wrong with it.
func Container(c *pluginapi.ContainerAllocateResponse) error {
	if n := proto.Size(c); n > maxContainer {
		return fmt.Errorf("it has %d bytes, at most %d are possible", n, maxContainer)
	}
	for name, value := range c.GetEnvs() {
		if problems := validation.IsRelaxedEnvVarName(name); len(problems) > 0 {
			return fmt.Errorf("envs[%s]: %s", show(name), strings.Join(problems, ", "))
		}
		if err := text(value); err != nil {
			return fmt.Errorf("envs[%s]: %w", show(name), err)
		}
	}
	if err := annotations(c.GetAnnotations()); err != nil {
		return err
	}
	return errors.Join(mounts(c.GetMounts()), deviceNodes(c.GetDevices()), cdi(c.GetCdiDevices()))
}

func annotations(all map[string]string) error {
	size := 0
	for key, value := range all {
		if err := annotation(key, value); err != nil {
			return fmt.Errorf("annotations[%s]: %w", show(key), err)
		}
		size += len(key) + len(value)
	}
	if size > maxAnnotations {
		return fmt.Errorf("annotations: they have %d bytes, at most %d are possible", size, maxAnnotations)
	}
	return nil
}

func annotation(key, value string) error {
	if key == "" || len(key) > maxKey {
		return fmt.Errorf("the key has %d bytes, 1 to %d are possible", len(key), maxKey)
	}
	if strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return errors.New("the key has a space or a control character")
	}
	if len(value) > maxAnnotation {
		return fmt.Errorf("the value has %d bytes, at most %d are possible", len(value), maxAnnotation)
	}
	return errors.Join(text(key), text(value))
}

func mounts(all []*pluginapi.Mount) error {
	for i, m := range all {
		if err := absolute(m.GetContainerPath()); err != nil {
			return fmt.Errorf("mounts[%d].container_path: %w", i, err)
		}
		if err := absolute(m.GetHostPath()); err != nil {
			return fmt.Errorf("mounts[%d].host_path: %w", i, err)
		}
	}
	return nil
}

func deviceNodes(all []*pluginapi.DeviceSpec) error {
	for i, d := range all {
		if err := absolute(d.GetContainerPath()); err != nil {
			return fmt.Errorf("devices[%d].container_path: %w", i, err)
		}
		if err := absolute(d.GetHostPath()); err != nil {
			return fmt.Errorf("devices[%d].host_path: %w", i, err)
		}
		if p := d.GetPermissions(); len(p) > len("rwm") || strings.Trim(p, "rwm") != "" {
			return fmt.Errorf("devices[%d].permissions: %s is not some of r, w and m", i, show(p))
		}
	}
	return nil
}

func cdi(all []*pluginapi.CDIDevice) error {
	for i, d := range all {
		if !parser.IsQualifiedName(d.GetName()) {
			return fmt.Errorf("cdi_devices[%d].name: %s is not vendor/class=name", i, show(d.GetName()))
		}
	}
	return nil
}

// absolute accepts paths with "..", which mean the same to each reader of a path that begins with "/".
func absolute(p string) error {
	switch {
	case !path.IsAbs(p):
		return fmt.Errorf("%s is no absolute path", show(p))
	case len(p) > maxPath:
		return fmt.Errorf("%s has %d bytes, a path has at most %d", show(p), len(p), maxPath)
	}
	return text(p)
}

// text refuses what ends a text for the kernel, and what is none in the checkpoint file.
func text(s string) error {
	if strings.ContainsRune(s, 0) {
		return fmt.Errorf("%s has a byte that is 0", show(s))
	}
	if !utf8.ValidString(s) {
		return fmt.Errorf("%s is no UTF-8", show(s))
	}
	return nil
}

// show quotes a value, or its beginning.
func show(s string) string {
	if len(s) > maxShown {
		return fmt.Sprintf("%q…", s[:maxShown])
	}
	return fmt.Sprintf("%q", s)
}

// Preferred returns the devices that a plugin prefers. Those that it was not offered do not count, which the caller
// looks after.
func Preferred(response *pluginapi.PreferredAllocationResponse) []string {
	if len(response.GetContainerResponses()) == 0 {
		return nil
	}
	return response.GetContainerResponses()[0].GetDeviceIDs()
}
