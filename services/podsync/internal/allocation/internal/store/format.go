package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/internal/checkpoint"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// format is that of both files.
var format = checkpoint.Format{Data: "data", Checksum: "checksum", Sum: checkpoint.SumOfText}

// contents is the data of a file.
type contents struct {
	Entries map[types.UID]json.RawMessage `json:"entries,omitempty"`
}

// olderContents is what a kubelet before 1.35 writes instead: the containers of each pod.
type olderContents struct {
	Entries map[types.UID]json.RawMessage `json:"allocationEntries"`
}

// The fields of a file, of its data and of an entry that this package reads.
const (
	versionField  = "version"
	entriesField  = "entries"
	olderField    = "allocationEntries"
	containersKey = "ContainerResources"
	podLevelKey   = "PodLevelResources"
	volumesKey    = "EmptyDirVolumeLimits"
)

// podListVersion is the first version with whole pods. Such a file has entries, too, which say the same of resources.
// It has none if there are no pods.
const podListVersion = "v2"

// kept is what a file has that this package does not know: beside its data, and in its data beside the entries.
type kept struct{ outside, beside map[string]json.RawMessage }

// parse returns what a file holds. The entries that it had to leave out are in skipped.
func parse(c checkpoint.Content) (entries map[types.UID]entry, k kept, skipped, err error) {
	var d contents
	var older olderContents
	for _, to := range []any{&d, &older} {
		if err := json.Unmarshal(c.Data, to); err != nil {
			return nil, kept{}, nil, fmt.Errorf("its data: %w", err)
		}
	}
	version := versionOf(c)
	switch {
	case version == "":
		k.outside = c.Others
		if k.beside, err = checkpoint.Unknown(c.Data, entriesField, olderField); err != nil {
			return nil, kept{}, nil, fmt.Errorf("its data: %w", err)
		}
	case version != podListVersion && d.Entries == nil:
		return nil, kept{}, nil, fmt.Errorf("its version is %.20q and it has no entries: this program reads entries",
			version)
	}
	// What a later version adds may say the same as the entries, in other words. It would be wrong after a change. So the
	// file is written without a version and with entries alone, which each version reads.
	entries = make(map[types.UID]entry, len(d.Entries)+len(older.Entries))
	skipped = errors.Join(
		parseEach(entries, older.Entries, parseOlder), parseEach(entries, d.Entries, parseEntry))
	return entries, k, skipped, nil
}

// versionOf returns the version of a file; empty if it is of 1.37 or before.
func versionOf(c checkpoint.Content) string {
	text := c.Others[versionField]
	var version string
	if text != nil && json.Unmarshal(text, &version) != nil {
		return string(text) // no version yet is no string
	}
	return version
}

// content is what a file with these entries holds.
func (k kept) content(entries map[types.UID]entry) (checkpoint.Content, error) {
	texts := make(map[types.UID]json.RawMessage, len(entries))
	for uid, e := range entries {
		texts[uid] = e.text
	}
	data, err := json.Marshal(contents{Entries: texts})
	if err != nil {
		return checkpoint.Content{}, err
	}
	data, err = checkpoint.Join(data, k.beside)
	return checkpoint.Content{Data: data, Others: k.outside}, err
}

// maxSkipped is how many entries an error names.
const maxSkipped = 5

func parseEach(entries map[types.UID]entry, texts map[types.UID]json.RawMessage,
	parse func(json.RawMessage) (entry, error)) error {
	var errs []error
	more := 0
	for _, uid := range slices.Sorted(maps.Keys(texts)) {
		e, err := parse(texts[uid])
		switch {
		case err == nil:
			entries[uid] = e
		case len(errs) < maxSkipped:
			errs = append(errs, fmt.Errorf("pod %s: %w", short(uid), err))
		default:
			more++
		}
	}
	if more > 0 {
		errs = append(errs, fmt.Errorf("and %d more", more))
	}
	return errors.Join(errs...)
}

// short is a pod's UID for an error: the file may have any text in its place.
func short(uid types.UID) string { return fmt.Sprintf("%.63q", string(uid)) }

// entry is what a file has of one pod. It is not changed once it is made.
type entry struct {
	resources pod.Resources
	// volumes are the limits of emptyDirs, and others what this package does not know.
	volumes map[string]*resource.Quantity
	others  map[string]json.RawMessage
	// text is the whole.
	text json.RawMessage
}

// written is an entry as the kubelet writes it.
type written struct {
	ContainerResources   map[string]v1.ResourceRequirements
	PodLevelResources    *v1.ResourceRequirements
	EmptyDirVolumeLimits map[string]*resource.Quantity
}

// with returns the entry with other resources, as it is read again.
func (e entry) with(r pod.Resources) (entry, error) {
	if r.Containers == nil {
		r.Containers = map[string]v1.ResourceRequirements{}
	}
	text, err := json.Marshal(written{r.Containers, r.Pod, e.volumes})
	if err != nil {
		return entry{}, err
	}
	if text, err = checkpoint.Join(text, e.others); err != nil {
		return entry{}, err
	}
	return parseEntry(text)
}

// parseEntry reads an entry as the kubelet does, which does not start with what is refused here. So a field counts in
// any letters, and each time if it stands twice.
func parseEntry(text json.RawMessage) (entry, error) {
	if len(text) > maxEntry {
		return entry{}, fmt.Errorf("it has %d bytes of resources, at most %d are possible", len(text), maxEntry)
	}
	var is struct {
		ContainerResources   map[string]requirements
		PodLevelResources    *requirements
		EmptyDirVolumeLimits map[string]*quantity
	}
	if err := json.Unmarshal(text, &is); err != nil {
		return entry{}, where(text, err)
	}
	others, err := checkpoint.Unknown(text, containersKey, podLevelKey, volumesKey)
	if err != nil {
		return entry{}, err
	}
	e := entry{text: text, resources: pod.Resources{Containers: granted(is.ContainerResources)}, others: others}
	if is.PodLevelResources != nil {
		e.resources.Pod = new(is.PodLevelResources.granted())
	}
	if is.EmptyDirVolumeLimits != nil {
		e.volumes = make(map[string]*resource.Quantity, len(is.EmptyDirVolumeLimits))
		for name, limit := range is.EmptyDirVolumeLimits {
			e.volumes[name] = (*resource.Quantity)(limit)
		}
	}
	return e, nil
}

// where adds to an error about an entry what it is about, if that can be found.
func where(text json.RawMessage, err error) error {
	var parts struct {
		ContainerResources                      map[string]json.RawMessage
		PodLevelResources, EmptyDirVolumeLimits json.RawMessage
	}
	if json.Unmarshal(text, &parts) != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(parts.ContainerResources)) {
		if err := json.Unmarshal(parts.ContainerResources[name], new(requirements)); err != nil {
			return fmt.Errorf("container %.63q: %w", name, err)
		}
	}
	if parts.PodLevelResources != nil {
		if err := json.Unmarshal(parts.PodLevelResources, new(requirements)); err != nil {
			return fmt.Errorf("%s: %w", podLevelKey, err)
		}
	}
	if parts.EmptyDirVolumeLimits != nil {
		if err := json.Unmarshal(parts.EmptyDirVolumeLimits, new(map[string]*quantity)); err != nil {
			return fmt.Errorf("%s: %w", volumesKey, err)
		}
	}
	return err
}

// parseOlder reads the containers of a pod, which is all that an entry had.
func parseOlder(text json.RawMessage) (entry, error) {
	var containers map[string]requirements
	if err := json.Unmarshal(text, &containers); err != nil {
		return entry{}, err
	}
	return entry{}.with(pod.Resources{Containers: granted(containers)})
}
