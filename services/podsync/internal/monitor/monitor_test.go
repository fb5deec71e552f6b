package monitor

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
)

// runtime answers, fails or hangs.
type runtime struct {
	err  error
	hang bool
}

func (r *runtime) Status(ctx context.Context) (*runtimeapi.StatusResponse, error) {
	if r.hang {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return &runtimeapi.StatusResponse{
		Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
			{Type: runtimeapi.RuntimeReady, Status: true},
			{Type: runtimeapi.NetworkReady, Reason: "NoCNI", Message: "no network"},
		}},
		RuntimeHandlers: []*runtimeapi.RuntimeHandler{{Name: "runc", Features: &runtimeapi.RuntimeHandlerFeatures{UserNamespaces: true}}},
	}, r.err
}

func (r *runtime) Version(context.Context) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{RuntimeName: "containerd", RuntimeVersion: "v2"}, nil
}

func TestTellsConditionsAndFailures(t *testing.T) {
	var told *podsyncv1.Runtime
	r := &runtime{}
	m := &Monitor{Runtime: r, Tell: func(a *podsyncv1.Runtime) { told = a }, CgroupDriver: "systemd", Log: slog.New(slog.DiscardHandler)}
	m.Tell(m.ask(t.Context()))
	if !told.GetRuntimeReady().GetStatus() || told.GetNetworkReady().GetStatus() || told.GetNetworkReady().GetReason() != "NoCNI" ||
		told.GetError() != "" || told.GetCgroupDriver() != "systemd" || !told.GetHandlers()[0].GetUserNamespaces() {
		t.Fatalf("%+v", told)
	}
	r.err = errors.New("connection refused")
	if told = m.ask(t.Context()); told.GetError() == "" || told.GetName() != "containerd" || told.GetRuntimeReady() != nil {
		t.Fatalf("%+v", told)
	}
}

func TestAHungRuntimeIsToldWithinTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		m := &Monitor{Runtime: &runtime{hang: true}, Log: slog.New(slog.DiscardHandler)}
		if told := m.ask(t.Context()); told.GetError() == "" || time.Since(began) != timeout {
			t.Fatalf("after %v: %+v", time.Since(began), told)
		}
	})
}
