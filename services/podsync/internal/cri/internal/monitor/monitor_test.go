package monitor

import (
	"context"
	"errors"
	"log/slog"
	"slices"
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
		RuntimeHandlers: []*runtimeapi.RuntimeHandler{{
			Name:     "runc",
			Features: &runtimeapi.RuntimeHandlerFeatures{UserNamespaces: true},
		}},
	}, r.err
}

func (r *runtime) Version(context.Context) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{RuntimeName: "containerd", RuntimeVersion: "v2"}, nil
}

func TestReportsConditionsAndFailures(t *testing.T) {
	r := &runtime{}
	m := New(r, "systemd", slog.New(slog.DiscardHandler))
	answer := m.ask(t.Context())
	if !answer.GetRuntimeReady().GetStatus() || answer.GetNetworkReady().GetStatus() ||
		answer.GetNetworkReady().GetReason() != "NoCNI" ||
		answer.GetError() != "" || answer.GetCgroupDriver() != "systemd" ||
		!answer.GetHandlers()[0].GetUserNamespaces() {
		t.Fatalf("%+v", answer)
	}
	r.err = errors.New("connection refused")
	if answer = m.ask(t.Context()); answer.GetError() == "" || answer.GetName() != "containerd" ||
		answer.GetRuntimeReady() != nil {
		t.Fatalf("%+v", answer)
	}
}

func TestAHungRuntimeIsReportedWithinTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		m := New(&runtime{hang: true}, "systemd", slog.New(slog.DiscardHandler))
		if answer := m.ask(t.Context()); answer.GetError() == "" || time.Since(began) != timeout {
			t.Fatalf("after %v: %+v", time.Since(began), answer)
		}
	})
}

// listener writes down what it learns.
type listener struct {
	name  string
	heard *[]string
}

func (l listener) Learn(r *podsyncv1.Runtime) { *l.heard = append(*l.heard, l.name+" "+r.GetName()) }

func TestEveryListenerLearnsEachAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var heard []string
		m := New(&runtime{}, "systemd", slog.New(slog.DiscardHandler), listener{"first", &heard},
			listener{"second", &heard})
		ctx, cancel := context.WithTimeout(t.Context(), Period+time.Second)
		defer cancel()
		if err := m.Run(ctx); err != nil {
			t.Fatal(err)
		}
		if want := []string{"first containerd", "second containerd", "first containerd",
			"second containerd"}; !slices.Equal(heard, want) {
			t.Errorf("heard %q, want %q", heard, want)
		}
	})
}
