package cgroupdriver

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// fakeRuntime gives one answer, and counts how often it is asked.
type fakeRuntime struct {
	answer *runtimeapi.RuntimeConfigResponse
	err    error
	asked  int
}

func (r *fakeRuntime) RuntimeConfig(context.Context) (*runtimeapi.RuntimeConfigResponse, error) {
	r.asked++
	return r.answer, r.err
}

func uses(d runtimeapi.CgroupDriver) *runtimeapi.RuntimeConfigResponse {
	return &runtimeapi.RuntimeConfigResponse{Linux: &runtimeapi.LinuxRuntimeConfiguration{CgroupDriver: d}}
}

func TestTheRuntimesDriverIsTaken(t *testing.T) {
	for _, c := range []struct {
		name string
		fakeRuntime
		want  string
		again int // how often the runtime is asked when its driver is to be confirmed
	}{
		{"systemd", fakeRuntime{answer: uses(runtimeapi.CgroupDriver_SYSTEMD)}, "systemd", 0},
		{"cgroupfs", fakeRuntime{answer: uses(runtimeapi.CgroupDriver_CGROUPFS)}, "cgroupfs", 0},
		{"it does not know", fakeRuntime{err: status.Error(codes.Unimplemented, "unknown method")}, "configured", 0},
		{"it says nothing of Linux", fakeRuntime{answer: &runtimeapi.RuntimeConfigResponse{}}, "configured", 0},
		{"it does not answer", fakeRuntime{err: errors.New("connection refused")}, "configured", 1},
	} {
		d := Find(t.Context(), &c.fakeRuntime, "configured", slog.New(slog.DiscardHandler))
		if d.Name != c.want {
			t.Errorf("%s: took %s, want %s", c.name, d.Name, c.want)
		}
		if err := d.Confirm(t.Context()); err != nil || c.asked != 1+c.again {
			t.Errorf("%s: confirmed after %d questions: %v", c.name, c.asked, err)
		}
	}
}

func TestADriverThatWasGuessedIsConfirmed(t *testing.T) {
	for _, c := range []struct {
		configured string
		fails      bool
	}{{"systemd", false}, {"cgroupfs", true}} {
		r := &fakeRuntime{err: errors.New("connection refused")}
		d := Find(t.Context(), r, c.configured, slog.New(slog.DiscardHandler))
		r.answer, r.err = uses(runtimeapi.CgroupDriver_SYSTEMD), nil
		if err := d.Confirm(t.Context()); (err != nil) != c.fails {
			t.Errorf("started with %s, and the runtime uses systemd: %v", c.configured, err)
		}
	}
}
