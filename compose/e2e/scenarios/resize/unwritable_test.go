package resize

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/internal/resizing"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/proto/role"
)

// TestResizeOnAnUnwritableDisk resizes pods while podsync cannot write its state files, and kills it in between. The
// pods keep what they have and say why, until the files can be written again.
func TestResizeOnAnUnwritableDisk(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	s := scene.New(t)
	var pods []*corev1.Pod
	names := []string{"first", "second"}
	for _, name := range names {
		pods = append(pods, kinds[0].pod(s, name, least))
	}
	s.CreatePods(pods...)
	s.WaitReady(scene.Patience, names...)
	w := s.Witness(names...)

	writable := unwritable(t, s.RootDir())
	s.Resize(names[0], to(most))
	s.Wait(scene.Patience, "a resize that is not recorded", unrecorded(s, names[:1]...))
	s.Signal(t, syscall.SIGKILL, role.Podsync)
	s.WaitHealthy(t, scene.Patience)
	s.Resize(names[1], to(most))
	s.Wait(scene.Patience, "resizes that are not recorded", unrecorded(s, names...))
	scene.Await(t, scene.Patience, "the resources to stay", func() error { return s.AgreeOnResources(names...) })
	writable()
	s.Wait(scene.Patience, "the resizes", s.AreResized(names...))
	scene.Await(t, scene.Patience, "the resources to agree", func() error { return s.AgreeOnResources(names...) })
	s.Resize(names[0], to(least))
	s.Wait(scene.Patience, "another resize", s.AreResized(names[0]))
	scene.Await(t, scene.Patience, "the resources to agree", func() error { return s.AgreeOnResources(names...) })
	w.Untouched()
}

// unrecorded returns a condition for Wait: the resize of each pod waits for the disk.
func unrecorded(s *scene.Scene, names ...string) func(record.View) error {
	return func(v record.View) error {
		for _, name := range names {
			if err := s.IsPending(name, corev1.PodReasonDeferred)(v); err != nil {
				return err
			}
			const want = "cannot be recorded on the node"
			c := resizing.Condition(v.Pod(s.Namespace, name), corev1.PodResizePending)
			if !strings.Contains(c.Message, want) {
				return fmt.Errorf("the resize of pod %s waits since %q, want %q", name, c.Message, want)
			}
		}
		return nil
	}
}

// unwritable lets no process create or rename a file in a folder until writable is called. That is so for root too, and
// for no folder in it.
func unwritable(t *testing.T, dir string) (writable func()) {
	t.Helper()
	set := func(flag string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if out, err := exec.CommandContext(ctx, "chattr", flag, dir).CombinedOutput(); err != nil {
			t.Fatalf("chattr %s %s: %v: %s", flag, dir, err, out)
		}
	}
	set("+i")
	writable = sync.OnceFunc(func() { t.Helper(); set("-i") })
	t.Cleanup(writable)
	return writable
}
