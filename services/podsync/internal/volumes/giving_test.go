package volumes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/microlet/microlet/services/internal/childpool"
	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/csivolume"
)

// slowFiles takes 0.7 s for each file that it gives to a group, and reports none if there is none.
type slowFiles struct {
	files int64
	err   error
}

func (s *slowFiles) Run(ctx context.Context, _ childpool.Call) (json.RawMessage, error) {
	for i := range s.files {
		childpool.Report(ctx, i)
		time.Sleep(700 * time.Millisecond)
	}
	return nil, s.err
}

// givingCSI publishes a volume that is to be given to its pod's group.
type givingCSI struct {
	CSI
	root string
}

func (g *givingCSI) Publish(_ context.Context, v *csivolume.Volume) (csivolume.Published, error) {
	at := filepath.Join(g.root, "pods", string(v.Pod.UID), "volumes/kubernetes.io~csi/pv/mount")
	return csivolume.Published{Path: at, GiveToGroup: true}, nil
}

// TestAPodIsToldOfAChangeOfOwnersThatTakesLong: after 30 s and then each minute, in the kubelet's words.
func TestAPodIsToldOfAChangeOfOwnersThatTakesLong(t *testing.T) {
	const event = "Warning VolumePermissionChangeInProgress Setting volume ownership for "
	const hint = " is taking longer than expected, consider using OnRootMismatch - https://kubernetes.io/docs/tasks/" +
		"configure-pod-container/security-context/#configure-volume-permission-and-ownership-change-policy-for-pods"
	csi := v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: "d.example", VolumeHandle: "h"}}
	const ofCSI, ofLocal = "u1/volumes/kubernetes.io~csi/pv/mount", "u1/volumes/kubernetes.io~local-volume/pv"
	refused := errors.New("refused")
	for name, c := range map[string]struct {
		source v1.PersistentVolumeSource
		slow   slowFiles
		want   []string
	}{
		"a CSI volume": {csi, slowFiles{files: 140},
			[]string{event + ofCSI + hint, event + ofCSI + ", processed 128 files."}},
		"a local one": {local("/disk"), slowFiles{files: 129},
			[]string{event + ofLocal + hint, event + ofLocal + ", processed 128 files."}},
		"one that fails":     {csi, slowFiles{files: 43, err: refused}, []string{event + ofCSI + hint}},
		"one that is fast":   {csi, slowFiles{files: 42}, nil},
		"one that is right":  {csi, slowFiles{}, nil},
		"one that fails too": {local("/disk"), slowFiles{files: 1, err: refused}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				root, recorder, a := t.TempDir(), record.NewFakeRecorder(10), &api{}
				m := NewManager(ManagerOptions{
					RootDir: root, Objects: a, Tokens: a, Foreign: &c.slow, BootID: "boot", Events: recorder,
					CSI:    &givingCSI{root: root},
					Claims: &claimed{volumes: map[string]*v1.PersistentVolume{"data": persistentVolume("pv", c.source)}},
				})
				p, group := claimant("u1", false), int64(4242)
				p.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: &group}
				if _, err := m.Mount(t.Context(), p); !errors.Is(err, c.slow.err) {
					t.Errorf("%v", err)
				}
				time.Sleep(10 * time.Minute) // no Event follows after the end
				var got []string
				for e := next(recorder.Events); e != ""; e = next(recorder.Events) {
					got = append(got, e)
				}
				if !slices.Equal(got, c.want) {
					t.Errorf("got %q, want %q", got, c.want)
				}
			})
		})
	}
}

// TestGivingReportsEachFile: the folder itself counts, and what is right already.
func TestGivingReportsEachFile(t *testing.T) {
	dir := t.TempDir()
	for i := range 3 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		var reports []int64
		ctx := childpool.WithProgress(t.Context(), func(n int64) { reports = append(reports, n) })
		call := giveCall{Dir: dir, Group: 4242}
		if _, err := giveVolume.Do(ctx, Operations(), dir, call); err != nil || !slices.Equal(reports, []int64{0, 1, 2, 3}) {
			t.Errorf("%v, reports %v", err, reports)
		}
	}
	var reports []int64
	ctx := childpool.WithProgress(t.Context(), func(n int64) { reports = append(reports, n) })
	call := giveCall{Dir: dir, Group: 4242, OnRootMismatch: true}
	if _, err := giveVolume.Do(ctx, Operations(), dir, call); err != nil || len(reports) > 0 {
		t.Errorf("a folder that is right: %v, reports %v", err, reports)
	}
}

func TestAfterUID(t *testing.T) {
	p := podWith()
	p.UID = types.UID("uid")
	for path, want := range map[string]string{"/var/pods/uid/volumes/v": "uid/volumes/v", "/elsewhere": "/elsewhere"} {
		if got := afterUID(p, path); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}
