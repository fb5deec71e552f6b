// Package checkpoint keeps what pods were granted in the kubelet's file kubelet_internal_checkpoint.
//
// The kubelet reads what this package writes, and the other way round, so that devices stay with their pods when one
// follows the other. Other programs read the file too. What the kubelet does not keep, such as where the plugins are,
// is in a field beside its data, which it ignores.
//
// https://github.com/kubernetes/kubernetes/blob/v1.37.1/pkg/kubelet/cm/devicemanager/checkpoint/checkpoint.go
package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/types"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	kubeletfile "github.com/microlet/microlet/services/internal/checkpoint"
)

const (
	// Name is the name of the file in the folder device-plugins.
	Name = "kubelet_internal_checkpoint"
	// maxFile bounds the file. Each of 1000 pods may have 64 KiB.
	maxFile = 64 << 20
	// pluginsField and goneField are fields beside the kubelet's.
	pluginsField = "Plugins"
	goneField    = "Gone"
	// noNUMA is the key of devices that are near to no NUMA node.
	noNUMA = -1
)

// These are the kubelet's types. Their names count, and so does that of this package: the checksum has them.
type (
	checkpointData struct {
		PodDeviceEntries  []PodDevicesEntry
		RegisteredDevices map[string][]string
	}
	// PodDevicesEntry is what one container was granted of one resource.
	PodDevicesEntry struct {
		PodUID        string
		ContainerName string
		ResourceName  string
		DeviceIDs     DevicesPerNUMA
		AllocResp     []byte
	}
	// DevicesPerNUMA are devices by NUMA node. One that is near to several is in the list of each.
	DevicesPerNUMA map[int64][]string
)

var format = kubeletfile.Format{Data: "Data", Checksum: "Checksum", Object: true, Sum: sum}

func sum(data []byte) (uint64, error) {
	var d checkpointData
	err := json.Unmarshal(data, &d)
	return kubeletfile.Sum(d), err
}

// Content is what the file holds.
type Content struct {
	Entries []Entry
	// Registered are the healthy devices of each resource that has a plugin.
	Registered map[string][]string
	// Plugins are where plugins were, in the order in which they registered.
	Plugins []Plugin
	// Gone are the pods of entries that are not shown any more.
	Gone []types.UID
}

// Entry is what one container was granted of one resource.
type Entry struct {
	Pod                 types.UID
	Container, Resource string
	// Devices have the NUMA nodes that each is near to.
	Devices map[string][]int64
	Answer  *pluginapi.ContainerAllocateResponse
}

// Plugin is a plugin that was connected.
type Plugin struct {
	ResourceName string
	// Endpoint is the path of its socket.
	Endpoint string
	// PreStartRequired is the plugin's option.
	PreStartRequired bool
}

// File is the file on the disk. One goroutine uses it at a time.
type File struct {
	path string
	file *kubeletfile.File
	// outside and inside are fields of a later version: beside the data, and in it.
	outside, inside map[string]json.RawMessage
}

// Open reads the file of a folder. One that cannot be used is set aside, and an entry that cannot be used is left out.
// The error says so; the file can be written all the same.
func Open(folder string) (*File, Content, error) {
	path := filepath.Join(folder, Name)
	f := &File{path: path, file: kubeletfile.New(path, format, maxFile)}
	c, err := f.file.Load()
	if errors.Is(err, fs.ErrNotExist) {
		return f, Content{}, nil
	}
	if err != nil {
		return f, Content{}, f.file.SetAside(err)
	}
	content, skipped := f.parse(c)
	if skipped != nil {
		skipped = fmt.Errorf("%s has parts that cannot be used: %w", path, skipped)
	}
	return f, content, skipped
}

// parse reads what the format has checked. What it leaves out is in the error.
func (f *File) parse(c kubeletfile.Content) (Content, error) {
	var (
		data    checkpointData
		content Content
	)
	if err := json.Unmarshal(c.Data, &data); err != nil {
		return content, err
	}
	var skipped error
	f.inside, skipped = kubeletfile.Unknown(c.Data, "PodDeviceEntries", "RegisteredDevices")
	skipped = errors.Join(skipped, take(c.Others, pluginsField, &content.Plugins),
		take(c.Others, goneField, &content.Gone))
	f.outside = c.Others
	content.Registered = data.RegisteredDevices
	for i, entry := range data.PodDeviceEntries {
		e, err := entry.read()
		if err != nil {
			skipped = errors.Join(skipped, fmt.Errorf("Data.PodDeviceEntries[%d]: %w", i, err))
			continue
		}
		content.Entries = append(content.Entries, e)
	}
	return content, skipped
}

// take reads a field beside the data, if there is one, and removes it.
func take[T any](others map[string]json.RawMessage, field string, to *[]T) error {
	text := others[field]
	if text == nil {
		return nil
	}
	delete(others, field)
	if err := json.Unmarshal(text, to); err != nil {
		*to = nil
		return fmt.Errorf("field %s: %w", field, err)
	}
	return nil
}

func (e PodDevicesEntry) read() (Entry, error) {
	if e.PodUID == "" || e.ContainerName == "" || e.ResourceName == "" {
		return Entry{}, fmt.Errorf("pod %q, container %q, resource %q: one is empty", e.PodUID, e.ContainerName,
			e.ResourceName)
	}
	read := Entry{
		Pod: types.UID(e.PodUID), Container: e.ContainerName, Resource: e.ResourceName,
		Devices: map[string][]int64{}, Answer: &pluginapi.ContainerAllocateResponse{},
	}
	// An answer that this node would refuse is kept: the kubelet has started a container with it, which runs and has the
	// devices. podsync judges what the next one gets.
	if err := proto.Unmarshal(e.AllocResp, read.Answer); err != nil {
		return Entry{}, fmt.Errorf("AllocResp of pod %s, container %s: %w", e.PodUID, e.ContainerName, err)
	}
	for node, ids := range e.DeviceIDs {
		for _, id := range ids {
			nodes := read.Devices[id]
			if node >= 0 && !slices.Contains(nodes, node) {
				nodes = append(nodes, node)
			}
			slices.Sort(nodes)
			read.Devices[id] = nodes
		}
	}
	return read, nil
}

// Store makes the file hold this. It is on the disk then.
func (f *File) Store(content Content) error {
	data := checkpointData{RegisteredDevices: content.Registered}
	for _, e := range content.Entries {
		entry, err := e.write()
		if err != nil {
			return fmt.Errorf("write %s: pod %s, container %s, resource %s: %w", f.path, e.Pod, e.Container, e.Resource, err)
		}
		data.PodDeviceEntries = append(data.PodDeviceEntries, entry)
	}
	c := kubeletfile.Content{Others: map[string]json.RawMessage{}}
	for field, value := range f.outside {
		c.Others[field] = value
	}
	var err error
	if c.Others[pluginsField], err = json.Marshal(content.Plugins); err != nil {
		return err
	}
	if len(content.Gone) > 0 {
		if c.Others[goneField], err = json.Marshal(content.Gone); err != nil {
			return err
		}
	}
	if c.Data, err = json.Marshal(data); err != nil {
		return err
	}
	if c.Data, err = kubeletfile.Join(c.Data, f.inside); err != nil {
		return err
	}
	return f.file.Store(c)
}

func (e Entry) write() (PodDevicesEntry, error) {
	// The same content is the same file, which is not written again.
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(e.Answer)
	if err != nil {
		return PodDevicesEntry{}, err
	}
	devices := DevicesPerNUMA{}
	for id, nodes := range e.Devices {
		if len(nodes) == 0 {
			devices[noNUMA] = append(devices[noNUMA], id)
		}
		for _, node := range nodes {
			devices[node] = append(devices[node], id)
		}
	}
	for _, ids := range devices {
		slices.Sort(ids)
	}
	return PodDevicesEntry{
		PodUID: string(e.Pod), ContainerName: e.Container, ResourceName: e.Resource, DeviceIDs: devices, AllocResp: text,
	}, nil
}
