package twins

import (
	"encoding/json"
	"hash/crc32"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/allocation/state"
	"k8s.io/kubernetes/pkg/kubelet/checkpointmanager"
	cpustate "k8s.io/kubernetes/pkg/kubelet/cm/cpumanager/state"
	devices "k8s.io/kubernetes/pkg/kubelet/cm/devicemanager/checkpoint"
	drastate "k8s.io/kubernetes/pkg/kubelet/cm/dra/state"
	memorystate "k8s.io/kubernetes/pkg/kubelet/cm/memorymanager/state"

	"github.com/microlet/microlet/services/internal/checkpoint"
	allocationtwin "github.com/microlet/microlet/services/podsync/internal/allocation/twin"
)

// granted are what pods were granted. Both sides write the file that holds them, or say that they cannot.
type granted map[types.UID]state.PodResourceInfo

var _ = register(Pair[granted, string]{
	Name:     "checkpoint",
	Generate: drawGranted,
	Upstream: func(in granted) string {
		c, err := state.NewCheckpoint(&state.PodResourceCheckpointInfo{Entries: state.PodResourceInfoMap(in)})
		if err != nil {
			return err.Error()
		}
		file, err := c.MarshalCheckpoint()
		if err != nil {
			return err.Error()
		}
		return string(file)
	},
	Ours: func(in granted) string {
		file, err := allocationtwin.File(in.ours())
		if err != nil {
			return err.Error()
		}
		return file
	},
	Branches: func(in granted, _ string) []string {
		seen := []string{"some pods"}
		if len(in) == 0 {
			seen = []string{"no pods"}
		}
		for _, p := range in {
			if p.PodLevelResources != nil {
				seen = append(seen, "resources of the pod")
			}
		}
		return seen
	},
	Wanted: []string{"no pods", "some pods", "resources of the pod"},
	Break: func(in granted, out *string) {
		if len(in) > 1 {
			*out = strings.Replace(*out, "null", "{}", 1)
		}
	},
})

func (g granted) ours() map[types.UID]allocationtwin.PodResources {
	pods := map[types.UID]allocationtwin.PodResources{}
	for uid, p := range g {
		pods[uid] = allocationtwin.PodResources{Containers: p.ContainerResources, Pod: p.PodLevelResources}
	}
	return pods
}

func drawGranted(s *Source) granted {
	g := granted{}
	for range OneOf(s, 0, 1, 2, 5) {
		p := state.PodResourceInfo{ContainerResources: map[string]v1.ResourceRequirements{}}
		for range OneOf(s, 0, 1, 3) {
			p.ContainerResources[OneOf(s, "c", "d", "e12", "<&>", "é", "\u2028")] = drawGrantedResources(s)
		}
		if s.Percent(30) {
			p.PodLevelResources = new(drawGrantedResources(s))
		}
		g[types.UID(OneOf(s, "uid", "8f14e45f-ceea-467f-a0e6-b0a1b1a1b1a1", "<\"\\&>", "a/../b", "")+
			OneOf(s, "", "1", "2"))] = p
	}
	return g
}

func drawGrantedResources(s *Source) v1.ResourceRequirements {
	r := drawAmounts(s, "c").Resources
	for range OneOf(s, 0, 0, 1, 2) {
		if r.Limits == nil {
			r.Limits = v1.ResourceList{}
		}
		r.Limits[v1.ResourceName(OneOf(s, "a.b/c", "cpu", "memory", "hugepages-1Gi"))] = resource.MustParse(OneOf(s,
			"1", "0.1", "1e3", "1E3", "-1", "9223372036854775807", "9999999999999999999Ei", "0.0000000001", "1.5Gi", "100n"))
	}
	if s.Percent(20) {
		r.Claims = []v1.ResourceClaim{{Name: "claim", Request: OneOf(s, "", "one")}}
	}
	return r
}

// TestStateFilesAreHandedOver: the kubelet's own store and ours take turns with one file. Each has what the other wrote.
func TestStateFilesAreHandedOver(t *testing.T) {
	dir, logger := t.TempDir(), klog.Background()
	path := filepath.Join(dir, "allocated_pods_state")
	for turn := range uint64(60) {
		s := newSource(5, turn)
		is, want := granted{}, drawGranted(s)
		kubelet, err := state.NewStateCheckpoint(logger, dir, filepath.Base(path))
		if err != nil {
			t.Fatalf("turn %d: the kubelet does not start: %v", turn, err)
		}
		kubelet.RemoveOrphanedPods(sets.New[types.UID]())
		for _, uid := range slices.Sorted(maps.Keys(want)) {
			p := want[uid]
			if s.Percent(50) {
				p.EmptyDirVolumeLimits = map[string]*resource.Quantity{"v": new(resource.MustParse("1Gi"))}
				want[uid] = p
			}
			if err := kubelet.SetPodResourceInfo(logger, uid, p); err != nil {
				t.Fatal(err)
			}
		}
		ours, err := allocationtwin.Open(path)
		if err != nil {
			t.Fatalf("turn %d: %v", turn, err)
		}
		if len(want) == 0 {
			continue // the kubelet has written nothing
		}
		if uids := ours.UIDs(); !slices.Equal(uids, slices.Sorted(maps.Keys(want))) {
			t.Fatalf("turn %d: ours has the pods %q", turn, uids)
		}
		// Now ours changes some, and the kubelet has both changes, and the limits of volumes of before.
		for uid, p := range want {
			got, ok := ours.Get(uid)
			if !ok || !equality.Semantic.DeepEqual(got, granted{uid: p}.ours()[uid]) {
				t.Fatalf("turn %d: ours has of %q %+v, want %+v", turn, uid, got, p)
			}
			p.ContainerResources = maps.Clone(p.ContainerResources)
			p.ContainerResources["added"] = drawGrantedResources(s)
			p.PodLevelResources = new(drawGrantedResources(s))
			changed := granted{uid: p}.ours()[uid]
			if err := ours.Write(map[types.UID]*allocationtwin.PodResources{uid: &changed})[uid]; err != nil {
				t.Fatal(err)
			}
			is[uid] = p
		}
		if kubelet, err = state.NewStateCheckpoint(logger, dir, filepath.Base(path)); err != nil {
			t.Fatalf("turn %d: the kubelet does not start: %v", turn, err)
		}
		if got := granted(kubelet.GetPodResourceInfoMap()); !equality.Semantic.DeepEqual(got, is) {
			t.Fatalf("turn %d: the kubelet has\n%+v, want\n%+v", turn, got, is)
		}
	}
}

// TestEveryFormatIsRead: the files of the kubelet's other managers have other names and checksums.
func TestEveryFormatIsRead(t *testing.T) {
	cpu := cpustate.CPUManagerCheckpoint{CheckpointData: cpustate.CPUManagerCheckpointData{
		PolicyName: "static", DefaultCPUSet: "0-1", Entries: map[string]map[string]string{"uid": {"c": "2-3"}},
	}}
	memory := memorystate.MemoryManagerCheckpoint{CheckpointData: memorystate.MemoryManagerCheckpointData{
		PolicyName: "Static", MachineState: memorystate.NUMANodeMap{0: {NumberOfAssignments: 1, Cells: []int{0}}},
	}}
	claims, err := drastate.NewCheckpoint(nil)
	if err != nil {
		t.Fatal(err)
	}
	managers := checkpoint.Format{Data: "data", Checksum: "dataChecksum", Sum: checkpoint.SumOfText}
	for name, c := range map[string]struct {
		format      checkpoint.Format
		file, again checkpointmanager.Checkpoint
	}{
		"cpu":    {managers, &cpu, &cpustate.CPUManagerCheckpoint{}},
		"memory": {managers, &memory, &memorystate.MemoryManagerCheckpoint{}},
		"claims": {checkpoint.Format{Data: "Data", Checksum: "Checksum", Sum: func(data []byte) (uint64, error) {
			return uint64(crc32.ChecksumIEEE(data)), nil
		}}, claims, &drastate.Checkpoint{}},
		"devices": {checkpoint.Format{Data: "Data", Checksum: "Checksum", Object: true,
			Sum: func(data []byte) (uint64, error) {
				var file devices.Data
				err := json.Unmarshal(data, &file.Data)
				return checkpoint.Sum(file.Data), err
			}}, devices.New([]devices.PodDevicesEntry{{
			PodUID: "uid", ContainerName: "c", ResourceName: "a.b/c", AllocResp: []byte{0, 1},
			DeviceIDs: devices.DevicesPerNUMA{-1: {"b", "a"}, 0: nil},
		}}, map[string][]string{"a.b/c": {"a", "b"}}), devices.New(nil, nil)},
	} {
		text, err := c.file.MarshalCheckpoint()
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %s", name, text)
		content, err := c.format.Decode(text)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if text, err = c.format.Encode(content); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if err := c.again.UnmarshalCheckpoint(text); err != nil {
			t.Errorf("%s: the kubelet reads %s: %v", name, text, err)
		} else if err := c.again.VerifyChecksum(); err != nil {
			t.Errorf("%s: the kubelet reads %s: %v", name, text, err)
		}
	}
}
