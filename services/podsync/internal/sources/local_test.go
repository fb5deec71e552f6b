package sources

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
)

func openLocal(dir string) (*Local, *wants) {
	l := NewLocal(LocalOptions{
		Dir:      dir,
		NodeName: "n",
		Log:      slog.New(slog.DiscardHandler),
		Taken: func(name types.NamespacedName) string {
			if name.Name == "taken-n" {
				return "file"
			}
			return ""
		},
	})
	w := newWants()
	l.load(w)
	return l, w
}

func TestLocalPodsSurviveARestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	l, w := openLocal(dir)
	w.are(t, "")
	add := func(manifest string, want podsyncv1.RunPodResponse_Outcome) types.UID {
		t.Helper()
		p, outcome, err := l.Add(t.Context(), []byte(manifest))
		if err != nil || outcome != want {
			t.Fatalf("%v, %v", outcome, err)
		}
		return p.UID
	}
	a := add(text("a", "one"), podsyncv1.RunPodResponse_OUTCOME_CREATED)
	add(text("a", "one"), podsyncv1.RunPodResponse_OUTCOME_UNCHANGED)
	add(text("b", "one"), podsyncv1.RunPodResponse_OUTCOME_CREATED)
	if b := add(text("a", "two"), podsyncv1.RunPodResponse_OUTCOME_REPLACED); a == b {
		t.Error("another manifest has the same UID")
	}
	w.are(t, "a-n=two b-n=one")
	put(t, filepath.Join(dir, ".new-123"), "half")

	l, w = openLocal(dir)
	w.are(t, "a-n=two b-n=one")
	add(text("a", "two"), podsyncv1.RunPodResponse_OUTCOME_UNCHANGED)
	if _, err := l.Remove(t.Context(), "", "b"); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Remove(t.Context(), "default", "b"); !errors.Is(err, ErrNotFound) {
		t.Errorf("removed twice: %v", err)
	}
	if _, err := l.Remove(t.Context(), "other", "a-n"); !errors.Is(err, ErrNotFound) {
		t.Errorf("removed from another namespace: %v", err)
	}
	w.are(t, "a-n=two")
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 1 {
		t.Fatalf("%v, %v", files, err)
	}
	if info, err := files[0].Info(); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode is %v, %v", info.Mode(), err)
	}
	if _, err := l.Remove(t.Context(), "", string(uidOfLocal(t, l))); err != nil {
		t.Fatal(err)
	}
	w.are(t, "")
}

func uidOfLocal(t *testing.T, l *Local) types.UID {
	t.Helper()
	pods, err := l.List(t.Context())
	if err != nil || len(pods) != 1 {
		t.Fatalf("%v, %v", pods, err)
	}
	return pods[0].UID
}

func TestLocalRefuses(t *testing.T) {
	l, _ := openLocal(t.TempDir())
	for manifest, want := range map[string]error{
		"hello": ErrInvalid,
		"apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {container: []}\n": ErrInvalid,
		"apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {containers: [{name: c, image: i, envFrom: [{secretRef: " +
			"{name: s}}]}]}\n": ErrInvalid,
		text("taken", "one"): ErrConflict,
	} {
		if _, _, err := l.Add(t.Context(), []byte(manifest)); !errors.Is(err, want) {
			t.Errorf("%q: %v", manifest, err)
		}
	}
}

// TestLocalConcludesNothingFromWhatItCannotRead: its pods may be running.
func TestLocalConcludesNothingFromWhatItCannotRead(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "x.json"), "{")
	l, w := openLocal(dir)
	w.are(t, "not synced")
	if _, _, err := l.Add(t.Context(), []byte(text("a", "one"))); err == nil {
		t.Error("took a request")
	}
}
