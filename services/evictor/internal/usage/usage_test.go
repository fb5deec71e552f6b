package usage

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	statsv1 "github.com/microlet/microlet/proto/microlet/stats/v1"
	"github.com/microlet/microlet/services/evictor/internal/reading"
	"github.com/microlet/microlet/services/internal/nodepods"
)

// stats has figures of one pod, of some age.
type stats struct {
	uid string
	age time.Duration
	err error
}

func (s stats) Summary(context.Context, *statsv1.SummaryRequest, ...grpc.CallOption) (*statsv1.SummaryResponse, error) {
	text, err := json.Marshal(statsapi.Summary{Pods: []statsapi.PodStats{{
		PodRef: statsapi.PodReference{UID: s.uid}, Memory: memoryOf(77),
	}}})
	return &statsv1.SummaryResponse{Json: text, Taken: timestamppb.New(time.Now().Add(-s.age))}, errors.Join(err, s.err)
}

func pod() *nodepods.Pod {
	return &nodepods.Pod{
		Pod: &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{UID: "u-1"}, Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c"}}},
		},
		Containers: []nodepods.Container{{Name: "c", ID: "abc", State: nodepods.Running}},
	}
}

// tree has the cgroup of the pod, under one driver's names.
func tree(t *testing.T, folder, container string) *Tree {
	t.Helper()
	mount := t.TempDir()
	for at, usage := range map[string]string{folder: "4000", filepath.Join(folder, container): "3000"} {
		dir := filepath.Join(mount, at)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{
			"memory.usage_in_bytes": usage, "memory.stat": "total_inactive_file 1000\n",
			// Of two threads one is the process.
			"cgroup.procs": "1\n", "tasks": "1\n2\n",
		} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	return &Tree{Mount: mount, Memory: reading.Memory{Mount: mount}}
}

func TestCgroupsAreReadAndStatsIsAskedForDisks(t *testing.T) {
	cgroups := tree(t, "kubepods/besteffort/podu-1", "abc")
	for name, test := range map[string]struct {
		stats stats
		disk  bool
		want  uint64
		err   string
	}{
		"of memory":       {stats{uid: "u-1"}, false, 3000, ""},
		"down":            {stats{err: errors.New("no stats")}, false, 3000, ""},
		"fresh":           {stats{uid: "u-1"}, true, 77, ""},
		"of another":      {stats{uid: "other"}, true, 0, "nothing is known"},
		"old":             {stats{uid: "u-1", age: time.Minute}, true, 0, "1m0s old"},
		"down, of a disk": {stats{err: errors.New("no stats")}, true, 0, "nothing is known"},
	} {
		u := &Usage{Stats: test.stats, Cgroups: cgroups}
		figures, err := u.Of(t.Context(), []*nodepods.Pod{pod()}, test.disk)
		if test.err == "" && err != nil || test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)) {
			t.Errorf("%s: %v, want %q", name, err, test.err)
		}
		if test.want == 0 {
			if figures != nil {
				t.Errorf("%s: %v", name, figures)
			}
			continue
		}
		if got := figures["u-1"]; got == nil || *got.Memory.WorkingSetBytes != test.want {
			t.Errorf("%s: %+v, want %d", name, got, test.want)
		}
	}
}

// large has a pod with old figures, of which some are late.
type large struct{ late []*statsv1.PodFolders }

func (l large) Summary(context.Context, *statsv1.SummaryRequest, ...grpc.CallOption) (*statsv1.SummaryResponse, error) {
	old := statsapi.FsStats{Time: metav1.NewTime(time.Now().Add(-time.Hour))}
	text, err := json.Marshal(statsapi.Summary{Pods: []statsapi.PodStats{{
		PodRef:      statsapi.PodReference{UID: "u-1"},
		VolumeStats: []statsapi.VolumeStats{{Name: "large", FsStats: old}, {Name: "hangs", FsStats: old}},
		Containers:  []statsapi.ContainerStats{{Name: "c", Logs: &old}, {Name: "d", Logs: &old}, {Name: "e"}},
	}}})
	return &statsv1.SummaryResponse{Json: text, Taken: timestamppb.New(time.Now().Add(-time.Second)), Late: l.late}, err
}

// A figure that is old because its walk takes long counts as one of the answer. One that is old for another reason does
// not, nor do those of a stats that does not say which are late.
func TestLateFiguresCountAsNew(t *testing.T) {
	late := []*statsv1.PodFolders{
		{PodUid: "gone", Volumes: []string{"hangs"}},
		{PodUid: "u-1", Volumes: []string{"large", "gone"}, Containers: []string{"c", "e"}},
	}
	for name, test := range map[string]struct {
		late []*statsv1.PodFolders
		want bool
	}{
		"late": {late, true}, "an older stats": {nil, false},
	} {
		figures, err := (&Usage{Stats: large{test.late}}).Of(t.Context(), []*nodepods.Pod{pod()}, true)
		if err != nil {
			t.Fatal(err)
		}
		isNew := func(f *statsapi.FsStats) bool { return time.Since(f.Time.Time) < 30*time.Minute }
		f := figures["u-1"]
		if isNew(&f.VolumeStats[0].FsStats) != test.want || isNew(f.Containers[0].Logs) != test.want {
			t.Errorf("%s: late are %v, %v", name, f.VolumeStats[0].Time, f.Containers[0].Logs.Time)
		}
		if isNew(&f.VolumeStats[1].FsStats) || isNew(f.Containers[1].Logs) {
			t.Errorf("%s: others are %v, %v", name, f.VolumeStats[1].Time, f.Containers[1].Logs.Time)
		}
	}
}

// stats may have what cgroups do not show.
func TestWhatCgroupsDoNotTell(t *testing.T) {
	broken := tree(t, "kubepods/besteffort/podu-1", "abc")
	usage := filepath.Join(broken.Mount, "kubepods/besteffort/podu-1/memory.usage_in_bytes")
	if err := os.WriteFile(usage, []byte("much"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		cgroups *Tree
		want    uint64
		err     string
	}{
		"unreadable": {broken, 77, "is not a size"},
		"elsewhere":  {tree(t, "kubepods/besteffort/podother", "abc"), 77, ""},
	} {
		u := &Usage{Stats: stats{uid: "u-1"}, Cgroups: test.cgroups}
		figures, err := u.Of(t.Context(), []*nodepods.Pod{pod()}, false)
		if test.err == "" && err != nil || test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)) {
			t.Errorf("%s: %v, want %q", name, err, test.err)
		}
		if got := figures["u-1"]; got == nil || *got.Memory.WorkingSetBytes != test.want {
			t.Errorf("%s: %+v, want %d", name, got, test.want)
		}
	}
}

func TestAPodWithoutACgroupTakesNothing(t *testing.T) {
	other := pod()
	other.Pod = other.DeepCopy()
	other.UID = "u-2"
	u := &Usage{Stats: stats{err: errors.New("no stats")}, Cgroups: tree(t, "kubepods/besteffort/podu-1", "abc")}
	figures, err := u.Of(t.Context(), []*nodepods.Pod{other, pod()}, false)
	if err != nil || len(figures) != 2 || *figures["u-2"].Memory.WorkingSetBytes != 0 {
		t.Errorf("%v, %v", figures, err)
	}
}

// A change of the driver leaves the empty cgroups of the old one.
func TestTheRootThatIsUsedIsFound(t *testing.T) {
	cgroups := tree(t, "kubepods.slice/kubepods-besteffort.slice", "abc")
	for at, usage := range map[string]string{"kubepods": "1000", "kubepods.slice": "9000"} {
		dir := filepath.Join(cgroups.Mount, at)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{"memory.usage_in_bytes": usage, "memory.stat": "total_inactive_file 0\n"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got := cgroups.AllPods(); got != "/kubepods.slice" {
		t.Errorf("all pods are in %s", got)
	}
}

// TestThreadsCount: a pod with thousands of threads in one process is not to shield itself behind pods with two
// processes.
func TestThreadsCount(t *testing.T) {
	const folder = "kubepods/besteffort/podu-1"
	for file, want := range map[string]uint64{"tasks": 5, "cgroup.threads": 5} {
		cgroups := tree(t, folder, "abc")
		if err := os.WriteFile(filepath.Join(cgroups.Mount, folder, file), []byte("1\n2\n3\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := cgroups.Pod(pod())
		if err != nil || *got.ProcessStats.ProcessCount != want {
			t.Errorf("%s: %+v, %v, want %d", file, got.ProcessStats, err, want)
		}
	}
}

func TestBothDriversNamesAreFound(t *testing.T) {
	for folder, container := range map[string]string{
		"kubepods/besteffort/podu-1": "abc",
		"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podu_1.slice": "cri-containerd-abc.scope",
	} {
		cgroups := tree(t, folder, container)
		got, err := cgroups.Pod(pod())
		if err != nil || *got.Memory.WorkingSetBytes != 3000 || *got.ProcessStats.ProcessCount != 4 ||
			len(got.Containers) != 1 || *got.Containers[0].Memory.WorkingSetBytes != 2000 {
			t.Errorf("%s: %+v, %v", folder, got, err)
		}
		if all := cgroups.AllPods(); all != "/"+strings.SplitN(folder, "/", 2)[0] {
			t.Errorf("all pods are in %s", all)
		}
	}
}
