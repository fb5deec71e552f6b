package volumes

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/microlet/microlet/services/internal/diskusage"
	"github.com/microlet/microlet/services/internal/nodepods"
	"github.com/microlet/microlet/services/internal/testing/proctest"
	"github.com/microlet/microlet/services/stats/internal/readerrors"
	"github.com/microlet/microlet/services/stats/internal/summary"
)

func TestMain(m *testing.M) {
	if diskusage.RunChild() {
		return
	}
	os.Exit(m.Run())
}

const (
	uid = "0e8b4ae1-5b53-4b5b-9c2a-000000000001"
	// patience is for what happens soon on an idle machine.
	patience = time.Minute
)

// node is a root folder and a folder of logs on a file system of their own.
type node struct {
	t          *testing.T
	root, logs string

	mu   sync.Mutex
	pods map[string]*nodepods.Pod
}

func newNode(t *testing.T) *node {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	// As where an operator has moved the kubelet's folder to a larger disk.
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "disk"), 0o700),
		os.Symlink("disk", filepath.Join(dir, "kubelet"))); err != nil {
		t.Fatal(err)
	}
	return &node{
		t: t, root: filepath.Join(dir, "kubelet"), logs: filepath.Join(dir, "logs"), pods: map[string]*nodepods.Pod{},
	}
}

func (n *node) file(size int, path ...string) {
	n.t.Helper()
	file := filepath.Join(path...)
	err := os.MkdirAll(filepath.Dir(file), 0o700)
	if err := errors.Join(err, os.WriteFile(file, make([]byte, size), 0o600)); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) all() map[string]*nodepods.Pod {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.pods
}

// run measures until the test ends.
func (n *node) run(period time.Duration) *Volumes {
	log := slog.New(slog.NewTextHandler(n.t.Output(), nil))
	v := New(Options{
		Claims:  func(string) []summary.Volume { return nil },
		RootDir: n.root, LogsDir: n.logs, Period: period, Pods: n.all, Book: readerrors.NewRecorder(log, nil), Log: log,
		Metrics: prometheus.NewRegistry(),
	})
	done := make(chan error, 1)
	go func() { done <- v.Run(n.t.Context()) }()
	n.t.Cleanup(func() {
		if err := <-done; err != nil {
			n.t.Error(err)
		}
	})
	return v
}

// full is a pod with all kinds of volumes, and files in them.
func (n *node) full() *nodepods.Pod {
	pod := filepath.Join(n.root, "pods", uid)
	n.file(5000, pod, "volumes/kubernetes.io~empty-dir/scratch/folder/file")
	n.file(100, pod, "volumes/kubernetes.io~empty-dir/memory/file")
	n.file(100, pod, "volumes/kubernetes.io~configmap/config/key")
	n.file(100, pod, "volumes/kubernetes.io~secret/secret/key")
	n.file(100, pod, "volumes/kubernetes.io~downward-api/downward/labels")
	n.file(100, pod, "volumes/kubernetes.io~projected/token/token")
	n.file(300, pod, "etc-hosts")
	n.file(20000, pod, "containers/app/0a1b2c3d")
	n.file(5000, pod, "containers/ended/12345678")
	logs := filepath.Join(n.logs, "ns_name_"+uid)
	n.file(9000, logs, "app/0.log")
	n.file(100, logs, "app/0.log.20260101-000000.gz")
	n.file(100, logs, "ended/0.log")
	n.file(5000, logs, "own.log")
	source := func(name string, s v1.VolumeSource) v1.Volume { return v1.Volume{Name: name, VolumeSource: s} }
	return &nodepods.Pod{
		Pod: object("ns", "name",
			source("scratch", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}),
			source("memory", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}}),
			source("config", v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{}}),
			source("secret", v1.VolumeSource{Secret: &v1.SecretVolumeSource{}}),
			source("downward", v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{}}),
			source("token", v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{}}),
			source("host", v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/"}}),
			source("missing", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}})),
		Containers: []nodepods.Container{{Name: "app", State: nodepods.Running}, {Name: "ended"}},
	}
}

func object(namespace, name string, volumes ...v1.Volume) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: v1.PodSpec{Volumes: volumes},
	}
}

func TestEachKindOfVolume(t *testing.T) {
	n := newNode(t)
	n.pods[uid] = n.full()
	v := n.run(0)
	want := map[string]struct {
		bytes, inodes uint64
		ephemeral     bool
	}{
		"scratch":  {8192, 3, true},
		"memory":   {4096, 2, false},
		"config":   {4096, 2, true},
		"secret":   {4096, 2, false},
		"downward": {4096, 2, false},
		"token":    {4096, 2, false},
	}
	var got []summary.Volume
	proctest.Await(t, patience, "figures of all volumes", func() bool {
		got = v.Volumes(uid)
		return len(got) == len(want)
	})
	for _, g := range got {
		w := want[g.Name]
		if *g.UsedBytes != w.bytes || *g.InodesUsed != w.inodes || g.Ephemeral != w.ephemeral || g.PVCRef != nil {
			t.Errorf("%s: %d bytes, %d inodes, ephemeral %v; want %+v", g.Name, *g.UsedBytes, *g.InodesUsed, g.Ephemeral, w)
		}
		if *g.CapacityBytes != 64<<20 || *g.AvailableBytes == 0 || *g.AvailableBytes >= 64<<20 || *g.Inodes == 0 ||
			*g.InodesFree == 0 || g.Time.IsZero() {
			t.Errorf("%s: %+v", g.Name, g.FsStats)
		}
	}
	var logs, own summary.Folder
	proctest.Await(t, patience, "figures of logs", func() bool {
		var ok, also bool
		logs, ok = v.Logs(uid, "app")
		own, also = v.Own(uid)
		return ok && also && own.Inodes == 5
	})
	if logs.Bytes != 12288+4096 || logs.Inodes != 2 || logs.Time.IsZero() {
		t.Errorf("logs: %+v", logs)
	}
	if own.Bytes != 4096+8192+20480+8192+4096 || own.Time.IsZero() {
		t.Errorf("hosts file, own logs, termination logs and the log of what has ended: %+v", own)
	}
	if f, ok := v.Logs(uid, "ended"); ok {
		t.Errorf("a container that does not run: %+v", f)
	}
}

func TestOfAnUnknownPod(t *testing.T) {
	v := newNode(t).run(0)
	if all := v.Volumes(uid); len(all) != 0 {
		t.Errorf("volumes %+v", all)
	}
	if f, ok := v.Own(uid); ok {
		t.Errorf("own %+v", f)
	}
	if f, ok := v.Logs(uid, "app"); ok {
		t.Errorf("logs %+v", f)
	}
}

func TestNoVolumesButLogs(t *testing.T) {
	n := newNode(t)
	n.pods[uid] = n.full()
	v := n.run(-1)
	proctest.Await(t, patience, "figures of logs", func() bool {
		_, ok := v.Logs(uid, "app")
		return ok
	})
	if all := v.Volumes(uid); len(all) != 0 {
		t.Errorf("volumes %+v", all)
	}
}

// busy is a measurer with long walks.
type busy struct{ measurer }

func (busy) Measurement(d diskusage.Dir) (diskusage.Measurement, bool) {
	late := strings.HasSuffix(d.Path, "/scratch") || strings.HasSuffix(d.Path, "_"+uid+"/app")
	return diskusage.Measurement{Late: late}, true
}

func TestLateFiguresAreMarked(t *testing.T) {
	n := &node{t: t, root: t.TempDir(), logs: t.TempDir()}
	v := &Volumes{
		o: Options{RootDir: n.root, LogsDir: n.logs, Claims: func(string) []summary.Volume { return nil }}, disk: busy{},
	}
	v.known = v.list(map[string]*nodepods.Pod{uid: n.full()})
	for _, vol := range v.Volumes(uid) {
		if vol.Late != (vol.Name == "scratch") {
			t.Errorf("%s is late: %t", vol.Name, vol.Late)
		}
	}
	logs, _ := v.Logs(uid, "app")
	own, _ := v.Own(uid)
	if !logs.Late || own.Late {
		t.Errorf("logs are late: %t, the pod's own: %t", logs.Late, own.Late)
	}
}

// What comes over the bus names no folder but a pod's own.
func TestNamesThatLeadElsewhere(t *testing.T) {
	n := newNode(t)
	log := slog.New(slog.DiscardHandler)
	v := New(Options{
		Claims:  func(string) []summary.Volume { return nil },
		RootDir: n.root, LogsDir: n.logs, Pods: n.all, Book: readerrors.NewRecorder(log, nil), Log: log,
		Metrics: prometheus.NewRegistry(),
	})
	bad := []string{"..", ".", "", "a/../../..", "/etc", "x/y"}
	for _, name := range bad {
		for what, p := range map[string]struct {
			uid string
			*nodepods.Pod
		}{
			"uid":       {name, &nodepods.Pod{Pod: object("ns", "name")}},
			"namespace": {uid, &nodepods.Pod{Pod: object(name, "name")}},
			"name":      {uid, &nodepods.Pod{Pod: object("ns", name)}},
			"container": {uid, &nodepods.Pod{Pod: object("ns", "name"),
				Containers: []nodepods.Container{{Name: name, State: nodepods.Running}}}},
			"volume": {uid, &nodepods.Pod{Pod: object("ns", "name",
				v1.Volume{Name: name, VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}})}},
		} {
			var dirs []string
			for _, known := range v.list(map[string]*nodepods.Pod{p.uid: p.Pod}) {
				for d := range known.Dirs {
					dirs = append(dirs, d.Path)
				}
			}
			if len(dirs) > 2 || slices.ContainsFunc(dirs, func(d string) bool { return !strings.Contains(d, uid) }) {
				t.Errorf("%s %q: %q are measured", what, name, dirs)
			}
		}
	}
}
