package admission

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/peer"
)

// refused rejects one pod.
type refused types.UID

func (r refused) Admit(_ context.Context, a *Attributes) (out Result) {
	if a.Pod.UID == types.UID(r) {
		out.Reason = "No"
	}
	return out
}

// lenient admits all pods but one.
func lenient(t *testing.T, rejects types.UID) *Admitter {
	t.Helper()
	m := newMachine(t)
	m.o.Handlers = []Handler{refused(rejects)}
	m.Heard(podsyncv1.PodSource_POD_SOURCE_API)
	return m.Admitter
}

// workers are those of all pods but one.
type workers struct{ synced chan struct{} }

func (w workers) Synced() <-chan struct{} { return w.synced }
func (workers) Known(uid types.UID) bool  { return uid != "gone" }

func helperPod(uid types.UID, namespace, label string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			UID:       uid,
			Namespace: namespace,
			Name:      "p",
			Labels:    map[string]string{peer.LabelRole: label},
		},
	}
}

func TestHelperPodsAreRecorded(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "helpers")
	h := newRecorder(lenient(t, "rejected"), Helpers{Namespace: "agents"}, peer.Helpers{Dir: dir},
		slog.New(slog.DiscardHandler))
	admit := func(p *v1.Pod) {
		t.Helper()
		if _, err := h.Admit(t.Context(), p, podsyncv1.PodSource_POD_SOURCE_API, false); err != nil {
			t.Fatal(err)
		}
	}
	recorded := func(uid string) role.Role {
		t.Helper()
		r, err := peer.HelperRole(dir, uid)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	admit(helperPod("a", "agents", "prober"))
	admit(helperPod("b", "agents", "nodeapi"))
	admit(helperPod("foreign", "default", "prober"))
	admit(helperPod("host", "agents", "bus"))
	admit(helperPod("rejected", "agents", "prober"))
	for uid, want := range map[string]role.Role{
		"a":        role.Prober,
		"b":        role.NodeAPI,
		"foreign":  "",
		"host":     "",
		"rejected": "",
	} {
		if got := recorded(uid); got != want {
			t.Errorf("pod %s is recorded as %q, want %q", uid, got, want)
		}
	}
	for path, want := range map[string]fs.FileMode{dir: 0o750, filepath.Join(dir, "a"): 0o640} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if st := info.Sys().(*syscall.Stat_t); info.Mode().Perm() != want || st.Uid != 0 || st.Gid != role.GroupNode {
			t.Errorf("%s has mode %o and belongs to %d:%d, want %o and 0:%d", path, info.Mode().Perm(), st.Uid, st.Gid,
				want, role.GroupNode)
		}
	}
	h.Ended("a")
	h.Forget("b")
	if recorded("a") != "" || recorded("b") != "" {
		t.Error("a pod that has ended is still a helper")
	}
	// After a restart: one lives, one is gone, one is no helper any more, one was being written.
	for _, uid := range []string{"lives", "gone", "changed"} {
		if err := h.records.Record(uid, role.Prober); err != nil {
			t.Fatal(err)
		}
	}
	unfinished := filepath.Join(dir, ".new-gone")
	if err := os.WriteFile(unfinished, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	admit(helperPod("changed", "agents", ""))
	synced := make(chan struct{})
	early, cancel := context.WithCancel(t.Context())
	cancel()
	if err := h.Sweep(early, workers{synced}); err != nil || recorded("gone") == "" {
		t.Fatalf("a record went before every source was heard: %v", err)
	}
	close(synced)
	if err := h.Sweep(t.Context(), workers{synced}); err != nil {
		t.Fatal(err)
	}
	for uid, want := range map[string]role.Role{"lives": role.Prober, "gone": "", "changed": ""} {
		if got := recorded(uid); got != want {
			t.Errorf("after a restart pod %s is recorded as %q, want %q", uid, got, want)
		}
	}
	if _, err := os.Stat(unfinished); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what was being written is left: %v", err)
	}
}

// An unreadable record keeps the pod from starting, and the next try admits it.
func TestAHelperThatCannotBeRecordedWaits(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "runtime", "helpers")
	h := newRecorder(lenient(t, ""), Helpers{Namespace: "agents"}, peer.Helpers{Dir: dir}, slog.New(slog.DiscardHandler))
	p := helperPod("a", "agents", "prober")
	if _, err := h.Admit(t.Context(), p, podsyncv1.PodSource_POD_SOURCE_API, false); err == nil {
		t.Fatal("admitted without a record")
	}
	if err := os.Mkdir(filepath.Dir(dir), 0o750); err != nil {
		t.Fatal(err)
	}
	if v, err := h.Admit(t.Context(), p, podsyncv1.PodSource_POD_SOURCE_API, false); err != nil || !v.Admitted() {
		t.Errorf("the next try: %v, %v", v, err)
	}
}
